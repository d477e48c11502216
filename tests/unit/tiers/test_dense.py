"""Dense versions: a layout, and references to one slot."""

from collections.abc import Iterator

import numpy as np
import pytest

from paramstream.tiers.dense import DenseVersion, Extent, lay_out
from paramstream.tiers.store import TieredStore


@pytest.fixture
def store() -> Iterator[TieredStore]:
    with TieredStore(dram="1MiB") as store:
        yield store


def test_tensors_lie_one_after_another_on_cache_lines() -> None:
    extents, total = lay_out({"a": 100, "empty": 0, "b": 64, "c": 1})
    assert extents == {"a": (0, 100), "empty": (128, 0), "b": (128, 64), "c": (192, 1)}
    assert list(extents) == ["a", "empty", "b", "c"]
    assert total == 193
    assert lay_out({}) == ({}, 0)


def make_version(store: TieredStore) -> DenseVersion:
    extents, total = lay_out({"w": 256, "b": 12})
    slot = store.allocate(total)
    slot.buffer[:256] = bytes(range(256))
    return DenseVersion(3, 77, b"digest", extents, slot)


def test_a_tensor_is_read_at_its_extent(store: TieredStore) -> None:
    version = make_version(store)
    offset, nbytes = version.extents["w"]
    array = np.frombuffer(version.shared(), np.uint8, count=nbytes, offset=offset)
    assert array.tolist() == list(range(256))
    version.release()


def test_making_a_version_ends_writing(store: TieredStore) -> None:
    slot = store.allocate(64)
    version = DenseVersion(3, 77, b"digest", {"w": Extent(0, 64)}, slot)
    with pytest.raises(ValueError, match="sealed"):
        _ = slot.buffer
    version.release()


def test_the_slot_is_released_with_the_last_reference(store: TieredStore) -> None:
    version = make_version(store)
    assert version.retain()
    version.release()
    assert store.usage().dense_bytes == version.nbytes
    version.release()
    assert store.usage().dense_bytes == 0
    assert not version.retain()
    with pytest.raises(ValueError, match="3"):
        version.release()


@pytest.mark.parametrize("extent", [Extent(0, 65), Extent(64, 1), Extent(-1, 2), Extent(3, -1)])
def test_an_extent_outside_its_slot_is_refused(store: TieredStore, extent: Extent) -> None:
    slot = store.allocate(64)
    with pytest.raises(ValueError, match="'w'"):
        DenseVersion(3, 77, b"digest", {"w": extent}, slot)
    slot.release()
