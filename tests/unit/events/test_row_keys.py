"""Row keys go to partitions by the hash of their bytes, whole batches at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import paramstream as ps
from paramstream.events.digest import key_hash, partition_of
from paramstream.events.row_keys import by_partition, hash_keys, in_groups, partitions_of, row_keys

EDGES = [0, 1, -1, 2**31, 2**32, 2**32 - 1, 2**63 - 1, -(2**63), 5, 5 + 2**32]
PINNED = [5841669975847748627, 11687913294787043142]


def keys_of_all_kinds() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    drawn = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 2000, np.int64)
    return np.concatenate([np.array(EDGES, np.int64), drawn])


def test_a_batch_of_keys_has_the_hashes_of_their_bytes() -> None:
    keys = keys_of_all_kinds()
    assert hash_keys(keys).tolist() == [key_hash(int(key).to_bytes(8, "little", signed=True)) for key in keys]


@pytest.mark.parametrize("partition", [None, 3])
def test_groups_have_all_places_of_their_keys_in_order_and_are_about_equal(partition: int | None) -> None:
    keys = np.random.default_rng(1).integers(0, 30_000, 100_000, np.int64)
    if partition is not None:
        keys = keys[partitions_of(keys, 4) == partition]
    groups = list(in_groups(keys, 20))
    assert np.array_equal(np.sort(np.concatenate(groups)), np.arange(len(keys)))
    assert all((np.diff(places) > 0).all() for places in groups)
    seen = [set(keys[places].tolist()) for places in groups]
    assert sum(map(len, seen)) == len(set(keys.tolist()))
    assert all(abs(len(places) * 20 - len(keys)) < 0.25 * len(keys) for places in groups)


def test_the_hashes_are_those_of_ever() -> None:
    assert hash_keys(np.array([-1, 2**63 - 1], np.int64)).tolist() == PINNED


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 7, 64, 1000, 1024])
def test_each_key_goes_to_its_partition_and_the_order_within_one_is_kept(partitions: int) -> None:
    keys = keys_of_all_kinds()
    expected = [partition_of(int(key).to_bytes(8, "little", signed=True), partitions) for key in keys]
    assert partitions_of(keys, partitions).tolist() == expected
    split = {number: keys if places is None else keys[places] for number, places in by_partition(keys, partitions)}
    assert {number: found.tolist() for number, found in split.items()} == {
        number: [int(key) for key, at in zip(keys, expected, strict=True) if at == number] for number in set(expected)
    }


@pytest.mark.parametrize("partitions", [1, 4])
def test_no_keys_go_nowhere(partitions: int) -> None:
    assert list(by_partition(np.empty(0, np.int64), partitions)) == []


@pytest.mark.parametrize("given", [EDGES, tuple(EDGES), np.array(EDGES), torch.tensor(EDGES)])
def test_keys_are_taken_as_a_sequence_an_array_or_a_tensor(given: object) -> None:
    assert row_keys("t", given).tolist() == EDGES


def test_an_empty_sequence_is_no_keys() -> None:
    assert row_keys("t", []).shape == (0,)


def test_keys_of_every_second_place_are_read_as_they_are_and_flat_ones_are_not_copied() -> None:
    flat = np.arange(10)
    assert row_keys("t", flat[::2]).tolist() == [0, 2, 4, 6, 8]
    assert np.shares_memory(row_keys("t", flat), flat)


@pytest.mark.parametrize(
    "given",
    [
        [2**63], [1.0], [True], ["1"], np.zeros(3, np.int32), np.zeros((2, 2), np.int64), np.int64(1), 1, None, b"1",
        torch.zeros(2), torch.tensor([1], dtype=torch.int32),
    ],
)  # fmt: skip
def test_what_is_no_row_key_is_refused_and_never_cast(given: object) -> None:
    with pytest.raises(ps.InvalidEvent):
        row_keys("t", given)
