"""Pieces of tensors in their slot, and the digests that are made of them on the way."""

import os
from collections.abc import Generator

import pytest

from paramstream.consumers.filling import Filling
from paramstream.events.digest import tensor_digest
from paramstream.tiers.dense import lay_out
from paramstream.tiers.store import TieredStore

W = os.urandom(5000)


@pytest.fixture
def store() -> Generator[TieredStore]:
    with TieredStore("1MiB") as store:
        yield store


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, 5000)],
        [(0, 1000), (1000, 5000)],
        [(1000, 5000), (0, 1000)],
        [(0, 1000), (0, 1000), (1000, 5000)],
        [(0, 3000), (3000, 5000), (1000, 4000)],
    ],
    ids=["whole", "in order", "backwards", "twice", "over what is there"],
)
def test_the_digest_is_that_of_the_bytes_in_the_slot(store: TieredStore, pieces: list[tuple[int, int]]) -> None:
    extents, nbytes = lay_out({"v": 300, "w": len(W), "empty": 0})
    slot = store.allocate(nbytes)
    filling = Filling(extents, slot)
    for start, end in pieces:
        filling.put("w", start, memoryview(W)[start:end])
    filling.put("v", 0, memoryview(W)[:300])
    at = extents["w"].offset
    assert bytes(slot.readonly_buffer[at : at + len(W)]) == W
    assert filling.digest("w") == tensor_digest(W)
    assert filling.digest("v") == tensor_digest(W[:300])
    assert filling.digest("empty") == tensor_digest(b"")


def test_a_piece_that_is_written_over_counts_as_what_it_is_now(store: TieredStore) -> None:
    extents, nbytes = lay_out({"w": 8})
    filling = Filling(extents, store.allocate(nbytes))
    filling.put("w", 0, memoryview(b"12345678"))
    filling.put("w", 0, memoryview(b"abcd"))
    assert filling.digest("w") == tensor_digest(b"abcd5678")
