"""The store: one budget over weights, entries and staging."""

import mmap

import pytest

import paramstream.errors
from paramstream.tiers.dense import DenseVersion, lay_out
from paramstream.tiers.entries import ENTRY_OVERHEAD_BYTES, Entry
from paramstream.tiers.store import TieredStore, TierUsage

PAGE = mmap.PAGESIZE


def parts_of(usage: TierUsage) -> int:
    return usage.dense_bytes + usage.entries_bytes + usage.rows_bytes + usage.staging_bytes + usage.free_bytes


def test_usage_is_the_exact_sum_of_all_that_is_held() -> None:
    with TieredStore(dram=1 << 20) as store:
        assert store.usage() == TierUsage(1 << 20, 0, 0, 0, 0, 0)
        one, two = store.allocate(3 * PAGE), store.allocate(40 * PAGE)
        store.entries((1, 0)).put(b"key", Entry(b"value", 1))
        store.entries((1, 1)).put(b"key", Entry(b"v", 1))
        store.charge_staging(500)
        one.release()
        usage = store.usage()
        entries = 12 + 2 * ENTRY_OVERHEAD_BYTES
        assert usage == TierUsage(1 << 20, 43 * PAGE + entries + 500, 40 * PAGE, entries, 500, 3 * PAGE)
        assert usage.held == parts_of(usage)
        assert usage.available_bytes == (1 << 20) - 40 * PAGE - entries - 500
        two.release()
        store.refund_staging(500)
        store.drop_entries((1, 0))
        store.drop_entries((9, 9))
        assert store.usage().entries_bytes == 4 + ENTRY_OVERHEAD_BYTES
    assert store.usage() == TierUsage(1 << 20, 0, 0, 0, 0, 0)


def test_entries_and_staging_push_out_free_slots_but_not_weights() -> None:
    with TieredStore(dram=10 * PAGE) as store:
        served, free = store.allocate(6 * PAGE), store.allocate(4 * PAGE)
        free.release()
        store.entries((1, 0)).put(b"k", Entry(bytes(2 * PAGE), 1))
        assert store.usage().free_bytes == 0
        store.charge_staging(PAGE)
        with pytest.raises(paramstream.errors.StorageFull):
            store.charge_staging(PAGE)
        with pytest.raises(paramstream.errors.StorageFull) as caught:
            store.allocate(PAGE)
        held = store.usage().held
        assert all(part in str(caught.value) for part in ("dram", str(PAGE), str(held), str(10 * PAGE)))
        assert held == parts_of(store.usage()) == 9 * PAGE + 1 + ENTRY_OVERHEAD_BYTES
        served.release()
        store.refund_staging(PAGE)


def test_a_partition_has_one_table() -> None:
    with TieredStore() as store:
        assert store.entries((1, 0)) is store.entries((1, 0))
        assert store.entries((1, 0)) is not store.entries((2, 0))


def test_a_stream_of_versions_stays_within_three_slots() -> None:
    extents, total = lay_out({f"layer{n}": 1000 + n for n in range(50)})
    with TieredStore(dram=4 * (total + PAGE)) as store:
        kept: list[DenseVersion] = []
        for number in range(200):
            slot = store.allocate(total)
            slot.buffer[:8] = number.to_bytes(8, "little")
            kept.append(DenseVersion(number, number << 1, b"", extents, slot))
            if len(kept) > 2:
                kept.pop(0).release()
            assert [int.from_bytes(version.readonly_buffer()[:8], "little") for version in kept] == [
                version.version for version in kept
            ]
        assert store.usage().held <= 3 * (total + PAGE)


def test_a_closed_store_says_so() -> None:
    store = TieredStore(dram="1MiB")
    store.entries((1, 0)).put(b"k", Entry(b"v", 1))
    store.close()
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.allocate(1)
    with pytest.raises(ValueError, match="closed"):
        store.entries((1, 0))


def test_a_wrong_size_is_refused_when_the_store_is_made() -> None:
    with pytest.raises(ValueError, match="lots"):
        TieredStore(dram="lots")
