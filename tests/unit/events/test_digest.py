"""Row keys go to the same partitions whether they are hashed one by one or all at once."""

from __future__ import annotations

import numpy as np
import pytest

from paramstream.events.digest import key_hash, partition_of, partitions_of, row_key_hashes

EDGES = [0, 1, -1, 255, 2**31, 2**32, 2**63 - 1, -(2**63)]


def some_keys() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    drawn = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 500, np.int64)
    return np.concatenate([np.array(EDGES, np.int64), drawn])


def test_hashes_of_an_array_are_those_of_its_keys() -> None:
    keys = some_keys()
    assert row_key_hashes(keys).tolist() == [key_hash(int(key).to_bytes(8, "little", signed=True)) for key in keys]


@pytest.mark.parametrize("partitions", [1, 2, 7, 1024])
def test_partitions_of_an_array_are_those_of_its_keys(partitions: int) -> None:
    keys = some_keys()
    one_by_one = [partition_of(int(key).to_bytes(8, "little", signed=True), partitions) for key in keys]
    assert partitions_of(keys, partitions).tolist() == one_by_one
    assert partitions_of(keys[:0], partitions).tolist() == []


def test_the_hash_of_a_row_key_is_pinned_for_ever() -> None:
    assert row_key_hashes(np.array([-1, 2**63 - 1], np.int64)).tolist() == PINNED


PINNED = [5841669975847748627, 11687913294787043142]
