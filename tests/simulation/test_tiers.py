"""Hostile worlds whose replicas have an ssd tier, to which every value and every version not served leaves between any two events."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from paramstream.consumers.applying import Applier
from paramstream.tiers import entries
from paramstream.tiers.budget import Budget
from paramstream.tiers.entries import Entry, EntryTable
from paramstream.tiers.store import TieredStore
from simulation import life
from simulation.play import play
from simulation.scenario import drawn


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], int]:
    """Gives how many items have left for SSD."""
    numbers, stores = itertools.count(), list[TieredStore]()

    def store_of(dram: str) -> TieredStore:
        stores.append(TieredStore(dram, ssd=f"{tmp_path / str(next(numbers))}:64MiB"))
        return stores[-1]

    def applier_of(store: TieredStore, keep_versions: int) -> Applier:
        applier = Applier(store, keep_versions)
        store.claim("replica", applier.in_dram)
        return applier

    def with_values(table: EntryTable) -> list[tuple[bytes, Entry]]:
        """As the judge compares them with its own."""
        return [(key, entry._replace(stored=entry.value)) for key, entry in items(table)]

    items = EntryTable.items
    monkeypatch.setattr(EntryTable, "items", with_values)
    monkeypatch.setattr(entries, "LEAST_SPILLED_BYTES", 1)
    monkeypatch.setattr(entries, "BLOB_OVERHEAD_BYTES", 0)
    monkeypatch.setattr(Budget, "excess", property(lambda budget: budget.held))
    monkeypatch.setattr(life, "TieredStore", store_of)
    monkeypatch.setattr(life, "Applier", applier_of)
    return lambda: sum(store.spill.counts.demoted for store in stores if store.spill is not None)


@pytest.mark.parametrize("seeds", [range(2, 3), pytest.param(range(3, 63), marks=pytest.mark.slow)])
def test_promises_hold_wherever_items_lie(seeds: range, moved: Callable[[], int], tmp_path: Path) -> None:
    for seed in seeds:
        assert play(drawn(seed)).problems == (), seed
    assert moved() > 0
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
