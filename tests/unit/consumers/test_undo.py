"""Before-images: kept for what may still be lost, and for nothing else."""

from __future__ import annotations

import pytest

from paramstream.consumers.undo import BeforeImages
from paramstream.tiers.entries import Entry
from paramstream.tiers.store import TieredStore

PARTITION = (7, 0)


@pytest.fixture
def store() -> TieredStore:
    return TieredStore()


@pytest.fixture
def images(store: TieredStore) -> BeforeImages:
    return BeforeImages(store, PARTITION)


def put(store: TieredStore, images: BeforeImages, position: int, key: bytes, value: bytes) -> None:
    (nbytes,) = images.room_for([key])
    images.keep(position, key, store.entries(PARTITION).put(key, Entry(value, position)), nbytes)
    images.drop_settled()


def value_of(store: TieredStore, key: bytes) -> bytes | None:
    entry = store.entries(PARTITION).get(key, 0)
    return entry.value if entry is not None else None


def test_what_is_above_the_durable_head_is_taken_back(store: TieredStore, images: BeforeImages) -> None:
    put(store, images, 1, b"k", b"one")
    images.settle(1)
    put(store, images, 2, b"k", b"two")
    put(store, images, 3, b"new", b"three")
    images.undo(1)
    assert (value_of(store, b"k"), value_of(store, b"new"), images.nbytes) == (b"one", None, 0)


def test_an_event_that_was_durable_before_it_was_applied_leaves_no_image(
    store: TieredStore, images: BeforeImages
) -> None:
    images.settle(1000)
    for position in range(1, 1001):
        put(store, images, position, b"k", bytes(position))
        assert images.nbytes == 0
    put(store, images, 1001, b"k", b"may be lost")
    assert images.nbytes > 0
    images.undo(1000)
    assert value_of(store, b"k") == bytes(1000)


def test_an_event_is_taken_back_while_it_is_being_applied_however_durable_it_is(
    store: TieredStore, images: BeforeImages
) -> None:
    put(store, images, 1, b"k", b"before")
    images.settle(10)
    table = store.entries(PARTITION)
    images.keep(2, b"k", table.put(b"k", Entry(b"half", 2)), *images.room_for([b"k"]))
    images.undo(1)
    assert value_of(store, b"k") == b"before"
