"""What moves between DRAM and SSD: values that were not used lately, versions that nobody is served, and both back again."""

import errno
import gc
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from paramstream.errors import CorruptTier, StorageFull
from paramstream.tiers.arena import Slot
from paramstream.tiers.blobs import BLOB_OVERHEAD_BYTES, Blob
from paramstream.tiers.dense import DenseVersion, lay_out
from paramstream.tiers.entries import ENTRY_OVERHEAD_BYTES, MOVED_OVERHEAD_BYTES, Entry, EntryTable
from paramstream.tiers.spill import SpillCounts
from paramstream.tiers.store import TieredStore

VALUE = 2000
CHARGED = 1 + VALUE + ENTRY_OVERHEAD_BYTES + MOVED_OVERHEAD_BYTES
"""DRAM for an entry whose key has one byte and whose value is there."""

KIB = 1024


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TieredStore]:
    with TieredStore(dram=512 * KIB, ssd=f"{tmp_path}:1MiB") as store:
        yield store


def room_for(nbytes: int, path: Path) -> TieredStore:
    return TieredStore(dram=nbytes, ssd=f"{path}:1MiB")


def value_of(number: int) -> bytes:
    return b"%04d" % number * (VALUE // 4)


def lies_on_ssd(table: EntryTable) -> set[bytes]:
    return {key for key, entry in table.items() if isinstance(entry.stored, Blob)}


def flip_a_bit(folder: Path) -> None:
    (path,) = folder.glob("*.tier")
    data = bytearray(path.read_bytes())
    data[700] ^= 16
    path.write_bytes(data)


def refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- values -----------------------------------------------------------------------------------------------------------------------


def test_a_value_that_was_read_stays_and_those_that_came_first_leave_M03(tmp_path: Path) -> None:
    with room_for(3 * CHARGED + 1400, tmp_path) as store:
        table = store.entries((1, 0))
        for number, key in enumerate((b"a", b"b", b"c"), 1):
            table.put(key, Entry(value_of(number), number))
        assert table.get(b"a", 0) is not None
        table.put(b"d", Entry(value_of(4), 4))
        assert lies_on_ssd(table) == {b"b"}
        table.put(b"e", Entry(value_of(5), 5))
        assert lies_on_ssd(table) == {b"b", b"c"}
        assert [entry.value for _, entry in table.items()] == [value_of(number) for number in range(1, 6)]


def test_a_value_on_ssd_comes_back_when_read_if_nothing_has_to_leave_for_it(store: TieredStore) -> None:
    table = store.entries((1, 0))
    table.put(b"k", Entry(value_of(1), 1))
    assert table.evict(1) == VALUE - BLOB_OVERHEAD_BYTES
    assert store.usage().held == CHARGED - VALUE + BLOB_OVERHEAD_BYTES
    store.charge_staging(store.dram.high - store.usage().held)
    entry = table.get(b"k", 0)
    assert entry is not None
    assert table.read(b"k", entry) == value_of(1)
    assert lies_on_ssd(table) == {b"k"}
    store.refund_staging(VALUE)
    assert table.read(b"k", entry) == value_of(1)
    assert lies_on_ssd(table) == set()
    assert (store.usage().entries_bytes, store.ssd is not None) == (CHARGED, True)
    assert store.spill is not None
    assert store.spill.counts == SpillCounts(demoted=1, promoted=1, read=2)
    del entry
    gc.collect()
    assert store.spill.blobs.used_bytes == 0


def test_small_values_never_leave(store: TieredStore) -> None:
    table = store.entries((1, 0))
    for number in range(20):
        table.put(b"%d" % number, Entry(bytes(1000), number))
    assert table.evict(1 << 20) == 0


def test_a_value_that_is_just_being_changed_does_not_leave_and_may_do_so_afterwards(tmp_path: Path) -> None:
    with room_for(CHARGED + 1500, tmp_path) as store:
        table = store.entries((1, 0))
        table.put(b"k", Entry(value_of(1), 1))
        with pytest.raises(StorageFull):
            table.put(b"k", Entry(value_of(2) * 2, 2))
        assert lies_on_ssd(table) == set()
        table.put(b"k", Entry(value_of(3), 3))
        assert table.evict(1) > 0
        assert lies_on_ssd(table) == {b"k"}


def test_where_nothing_can_leave_a_put_is_refused_at_once_M07(tmp_path: Path) -> None:
    with room_for(20_000, tmp_path) as store:
        table = store.entries((1, 0))
        with pytest.raises(StorageFull, match="dram tier cannot hold"):
            for number in range(100):
                table.put(b"%d" % number, Entry(bytes(500), number + 1))
        held = len(table)
        with pytest.raises(StorageFull, match="dram tier cannot hold"):
            table.put(b"large", Entry(bytes(30_000), 200))
        assert len(table) == held
        table.delete(b"1", 300)
        table.put(b"1", Entry(bytes(500), 301))


def test_a_failed_spill_leaves_the_value_dirty_and_in_its_place_K07(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with room_for(3 * CHARGED, tmp_path) as store:
        table = store.entries((1, 0))
        table.changed()
        for number, key in enumerate((b"a", b"b", b"c"), 1):
            table.put(key, Entry(value_of(number), number))
        with monkeypatch.context() as full:
            full.setattr(os, "pwrite", refuse)
            with pytest.raises(StorageFull) as caught:
                table.put(b"d", Entry(value_of(4), 4))
        # Both tiers, the folder and the bytes: whoever frees space must know where.
        assert all(part in str(caught.value) for part in ("dram", "ssd", str(tmp_path), str(VALUE), "No space left"))
        assert store.spill is not None
        assert store.spill.error
        assert table.changed() == [b"a", b"b", b"c"]
        assert {key: entry.value for key, entry in table.items()} == {
            b"a": value_of(1),
            b"b": value_of(2),
            b"c": value_of(3),
        }


def test_a_value_that_ssd_gives_back_wrong_is_named_until_it_is_written_again_K03(
    store: TieredStore, tmp_path: Path
) -> None:
    table = store.entries((1, 0))
    table.put(b"k", Entry(value_of(1), 7))
    table.put(b"other", Entry(b"small", 8))
    table.evict(1)
    flip_a_bit(tmp_path)
    assert store.spill is not None
    for _ in range(2):
        entry = table.get(b"k", 0)
        assert entry is not None
        with pytest.raises(CorruptTier, match=r"b'k'.*position 7|position 7.*b'k'") as caught:
            table.read(b"k", entry)
        assert str(tmp_path) in str(caught.value) == store.spill.error
    table.put(b"k", Entry(value_of(2), 9))
    entry = table.get(b"k", 0)
    assert entry is not None
    assert table.read(b"k", entry) == value_of(2)


def test_an_expired_value_on_ssd_is_neither_read_nor_brought_back_M08(store: TieredStore) -> None:
    table = store.entries((1, 0))
    table.put(b"k", Entry(value_of(1), 1, deadline=10))
    table.evict(1)
    assert table.get(b"k", 10) is None
    before = table.remove_expired(10)
    assert table.get(b"k", 0) is None
    assert len(table) == 0
    for key, removed in before:
        table.restore(key, removed)
    entry = table.get(b"k", 9)
    assert entry is not None
    assert table.read(b"k", entry) == value_of(1)


def test_a_reader_keeps_what_it_got_whatever_becomes_of_the_entry_M01(store: TieredStore) -> None:
    table = store.entries((1, 0))
    table.put(b"k", Entry(value_of(1), 1))
    table.evict(1)
    entry = table.get(b"k", 0)
    assert entry is not None
    table.put(b"k", Entry(value_of(2), 2))
    for number in range(20):
        table.put(b"%d" % number, Entry(value_of(number), 3))
    table.evict(1 << 20)
    assert table.read(b"k", entry) == entry.value == value_of(1)


def test_readers_see_right_values_while_one_thread_applies_and_others_move_them(tmp_path: Path) -> None:
    with room_for(8 * CHARGED, tmp_path) as store:
        table, stop, wrong = store.entries((1, 0)), threading.Event(), list[object]()

        def read() -> None:
            while not stop.is_set():
                for number in range(12):
                    entry = table.get(b"%c" % number, 0)
                    if entry is not None and table.read(b"%c" % number, entry) != value_of(entry.position):
                        wrong.append(entry)

        def move() -> None:
            while not stop.is_set():
                table.evict(3 * VALUE)

        others = [threading.Thread(target=each) for each in (read, read, move)]
        for other in others:
            other.start()
        try:
            for position in range(1, 1500):
                key = b"%c" % (position * 7 % 12)
                if position % 11:
                    table.put(key, Entry(value_of(position), position))
                else:
                    table.restore(key, table.delete(key, position))
        finally:
            stop.set()
            for other in others:
                other.join(10)
        assert wrong == []
        assert (
            store.usage().held
            == table.nbytes
            == sum(1 + entry.dram_bytes + ENTRY_OVERHEAD_BYTES + MOVED_OVERHEAD_BYTES for _, entry in table.items())
        )


# --- versions ---------------------------------------------------------------------------------------------------------------------


def sealed(store: TieredStore, number: int, nbytes: int = 100 * KIB) -> DenseVersion:
    extents, total = lay_out({"w": nbytes, "running_mean": 64})
    slot = store.allocate(total)
    slot.buffer[:] = np.random.default_rng(number).bytes(total)
    return store.seal(number, number * 10, b"digest", extents, slot)


def bytes_of(number: int, nbytes: int = 100 * KIB) -> bytes:
    return np.random.default_rng(number).bytes(lay_out({"w": nbytes, "running_mean": 64})[1])


def test_a_version_on_ssd_gives_its_dram_back_and_comes_back_whole_when_read_C05(store: TieredStore) -> None:
    version = sealed(store, 3)
    assert version.demote()
    assert not version.demote()
    store.trim()
    assert (version.is_resident, version.nbytes, store.usage().held) == (False, 0, 0)
    for read in (version.shared, version.private, version.readonly_buffer):
        assert bytes(read()) == bytes_of(3)
        assert version.is_resident
        assert version.demote()
    version.release()
    assert store.spill is not None
    assert store.spill.blobs.used_bytes == 0
    with pytest.raises(ValueError, match="3 was released"):
        version.shared()


def test_what_is_read_while_its_version_leaves_stays_valid_and_gives_its_memory_back_afterwards(
    store: TieredStore,
) -> None:
    version = sealed(store, 3)
    mapped = np.frombuffer(version.shared(), np.uint8)
    assert version.is_read
    version.demote()
    store.trim()
    assert mapped.tobytes() == bytes_of(3)
    assert store.usage().dense_bytes > 0
    del mapped
    store.trim()
    assert store.usage().held == 0
    version.release()


def test_the_oldest_versions_leave_for_a_new_one_and_what_is_served_or_read_stays(store: TieredStore) -> None:
    served = list[DenseVersion]()
    store.claim("replica", lambda: served)
    versions = [sealed(store, number) for number in (1, 2, 3)]
    served.append(versions[0])
    mapped = versions[1].shared()
    more = [sealed(store, number) for number in (4, 5)]
    assert [each.is_resident for each in (*versions, *more)] == [True, True, False, True, True]
    assert bytes(mapped) == bytes_of(2)
    served[:] = [*versions, *more]
    with pytest.raises(StorageFull, match="dram"):
        versions[2].shared()
    served.clear()
    assert bytes(versions[2].shared()) == bytes_of(3)


def test_a_version_that_ssd_does_not_take_stays_K07(store: TieredStore, monkeypatch: pytest.MonkeyPatch) -> None:
    version = sealed(store, 1)
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        assert not version.demote()
    assert store.spill is not None
    assert store.spill.error
    assert version.is_resident
    assert bytes(version.shared()) == bytes_of(1)


def test_a_version_that_ssd_gives_back_wrong_is_never_shown_and_can_be_refilled_K03(
    store: TieredStore, tmp_path: Path
) -> None:
    version, held = sealed(store, 4), store.usage().held
    version.demote()
    flip_a_bit(tmp_path)
    store.trim()
    for _ in range(2):
        with pytest.raises(CorruptTier, match=r"position 40.*version 4") as caught:
            version.shared()
        assert str(tmp_path) in str(caught.value)
    store.trim()
    assert store.usage().held == 0
    again = sealed(store, 4)
    version.refill(again)
    again.release()
    assert bytes(version.shared()) == bytes_of(4)
    store.trim()
    assert store.usage().held == held


def test_a_version_that_leaves_just_before_it_is_mapped_comes_back(
    store: TieredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, shared = sealed(store, 6), Slot.shared
    leaving = [version]

    def leave_first(slot: Slot) -> mmap.mmap:
        if leaving:
            leaving.pop().demote()
        return shared(slot)

    monkeypatch.setattr(Slot, "shared", leave_first)
    assert bytes(version.shared()) == bytes_of(6)
    assert version.is_resident


def test_many_readers_bring_a_version_back_once_while_it_leaves_again_and_again(store: TieredStore) -> None:
    version, wrong = sealed(store, 5), list[bytes]()
    expected = bytes_of(5)

    def read() -> None:
        for _ in range(60):
            found = bytes(version.shared())
            if found != expected:
                wrong.append(found)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        version.demote()
    for reader in readers:
        reader.join(10)
    assert wrong == []
    version.release()
    gc.collect()
    store.trim()
    assert store.spill is not None
    assert (store.usage().held, store.spill.blobs.used_bytes) == (0, 0)


def test_room_is_made_above_the_high_water_mark_down_to_the_low_one(store: TieredStore) -> None:
    table = store.entries((1, 0))
    for number in range(210):
        table.put(b"%c" % number, Entry(value_of(number), number + 1))
    assert store.dram.excess == 0
    store.make_room()
    assert lies_on_ssd(table) == set()
    store.charge_staging(store.dram.high - store.usage().held + 1)
    store.make_room()
    assert store.usage().held <= store.dram.limit * 7 // 8
    assert len(lies_on_ssd(table)) == 20


def test_a_closed_store_leaves_no_file_and_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store = TieredStore(dram=64 * KIB, ssd=f"{tmp_path}:1MiB")
    table, version = store.entries((1, 0)), sealed(store, 1, KIB)
    for number in range(60):
        table.put(b"%c" % number, Entry(value_of(number), number + 1))
    version.demote()
    assert len(os.listdir(tmp_path)) == 2
    store.close()
    del table, version
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before
