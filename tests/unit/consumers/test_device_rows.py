"""Tests of a replica's rows on a device and of prefetching: the bits of the look-up in DRAM, after any event, loss or close."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import paramstream as ps
from feeding.rows import delete_rows, table_of, write_gradients, write_rows
from feeding.world import World
from paramstream.consumers.prefetching import MAX_WAITING_KEYS, Prefetcher
from paramstream.consumers.replica import Replica
from paramstream.events.row_keys import by_partition
from paramstream.tiers.hbm import Hbm

KEYS = np.array([5, -1, 0, 2**63 - 1, -(2**63), 17, 18, 19, 20, 21], np.int64)
WAIT_SECONDS = 10.0


class DeviceWorld(World):
    """Two state partitions with a table, and a replica whose store has an HBM tier."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, partitions=2)
        self.table = table_of("users", "sgd", dim=4)
        self.states = [self.broker.writers[self.broker.topic.id, number] for number in range(2)]
        for state in self.states:
            state.write(self.table)
            self.broker.durable[state.partition] = state.position
        self.store = ps.TieredStore("16MiB", hbm="64KiB")
        self.rep = super().replica(store=self.store)
        self.settle()

    @property
    def hbm(self) -> Hbm:
        assert self.store.hbm is not None
        return self.store.hbm

    def keys_by_partition(self) -> list[NDArray[np.int64]]:
        found = {number: KEYS if places is None else KEYS[places] for number, places in by_partition(KEYS, 2)}
        return [found[0], found[1]]

    def learn(self, value: float) -> None:
        for state, keys in zip(self.states, self.keys_by_partition(), strict=True):
            write_gradients(state, self.table, keys.tolist(), value)
        self.settle()

    def both(self, keys: NDArray[np.int64] = KEYS) -> None:
        """The look-up on the device is that in DRAM, bit for bit."""
        below, found = self.rep.lookup("users", keys, return_found=True)
        rows, there = self.rep.lookup("users", keys, return_found=True, device="cpu")
        assert isinstance(rows, torch.Tensor)
        assert isinstance(there, torch.Tensor)
        assert np.array_equal(rows.numpy().view(np.uint8), np.asarray(below).view(np.uint8))
        assert there.tolist() == np.asarray(found).tolist()

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()
        self.store.close()


def settled(rep: Replica) -> bool:
    """Once nothing is waiting to be prefetched."""
    deadline = time.monotonic() + WAIT_SECONDS
    while rep.prefetches().waiting and time.monotonic() < deadline:
        time.sleep(0.001)
    return not rep.prefetches().waiting


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DeviceWorld]:
    made = DeviceWorld(tmp_path)
    yield made
    made.close()


def test_rows_on_the_device_are_those_of_dram_after_every_event(world: DeviceWorld) -> None:
    world.both()
    for step in range(5):
        world.learn(step / 3)
        world.both()
        world.hbm.settle()
        world.both()
    assert world.hbm.counters().hits > 0
    delete_rows(world.states[0], world.table, world.keys_by_partition()[0].tolist())
    world.settle()
    world.both()
    write_rows(world.states[0], world.table, world.keys_by_partition()[0].tolist(), 2.5)
    world.settle()
    world.both()


def test_what_was_lost_is_taken_back_on_the_device_too(world: DeviceWorld) -> None:
    world.learn(1.0)
    before = np.asarray(world.rep.lookup("users", KEYS)).copy()
    end = world.states[0].position
    write_gradients(world.states[0], world.table, world.keys_by_partition()[0].tolist(), 3.0)
    world.settle(durable=False)
    world.rep.lookup("users", KEYS, device="cpu")
    world.hbm.settle()
    assert not np.array_equal(np.asarray(world.rep.lookup("users", KEYS)), before)
    world.states[0].open_epoch(end=end)
    world.settle(durable=False)
    world.both()
    rows = world.rep.lookup("users", KEYS, device="cpu")
    assert isinstance(rows, torch.Tensor)
    assert np.array_equal(rows.numpy(), before)


def test_held_rows_stay_while_the_replica_applies(world: DeviceWorld) -> None:
    world.learn(1.0)
    world.rep.lookup("users", KEYS, device="cpu")
    world.hbm.settle()
    before = np.asarray(world.rep.lookup("users", KEYS)).copy()
    with world.rep.hold_rows("users", KEYS) as held:
        world.learn(2.0)
        world.both()
        assert np.array_equal(held.values[held.index].numpy(), before)
    world.both()


def test_a_prefetch_brings_rows_to_the_device_before_they_are_looked_up(world: DeviceWorld) -> None:
    world.learn(1.0)
    assert world.rep.prefetch("users", KEYS)
    assert settled(world.rep)
    done = world.rep.prefetches()
    assert (done.asked, done.moved, done.waiting) == (len(KEYS), len(KEYS), 0)
    world.both()
    assert world.hbm.counters().misses == 0
    assert world.hbm.counters().hits == len(KEYS)


def test_a_prefetch_of_what_cannot_be_had_is_told_by_the_next_call(tmp_path: Path) -> None:
    world = DeviceWorld(tmp_path)
    try:
        with pytest.raises(ps.UnknownTopic, match="no such table"):
            world.rep.prefetch("user", KEYS)
        with pytest.raises(ps.InvalidEvent, match="row keys are int64"):
            world.rep.prefetch("users", np.zeros(3))
        part = world.replica(partitions=[0])
        part.prefetch("users", KEYS)
        assert settled(part)
        assert part.prefetches().failed == len(KEYS)
        with pytest.raises(ps.InvalidEvent, match="does not follow"):
            part.prefetch("users", KEYS)
        assert part.prefetch("users", world.keys_by_partition()[0])
    finally:
        world.close()
    with pytest.raises(ps.ParamstreamError, match="closed"):
        world.rep.prefetch("users", KEYS)


def test_without_an_hbm_tier_rows_come_to_a_device_and_are_held_as_a_copy(tmp_path: Path) -> None:
    world = World(tmp_path)
    table = table_of("users", "sgd", dim=4, dtype="bfloat16")
    world.broker.state.write(table)
    world.broker.durable = {p: writer.position for p, writer in world.broker.writers.items()}
    rep = world.replica()
    try:
        write_rows(world.broker.state, table, [1, 2], 0.5)
        world.settle()
        rows = rep.lookup("users", [2, 1, 2], device="cpu")
        assert isinstance(rows, torch.Tensor)
        assert rows.dtype == torch.bfloat16
        assert rows.tolist() == [[0.5] * 4] * 3
        with rep.hold_rows("users", [2, 1, 2]) as held:
            assert torch.equal(held.values[held.index], rows)
        assert rep.prefetch("users", [1, 2])
        with pytest.raises(ps.InvalidEvent, match="no device here"):
            rep.lookup("users", [1], device="cuda:7")
    finally:
        rep.close()


def test_a_topic_that_is_gone_leaves_nothing_on_the_device(world: DeviceWorld) -> None:
    world.learn(1.0)
    world.rep.lookup("users", KEYS, device="cpu")
    world.hbm.settle()
    assert world.hbm.usage().rows == len(KEYS)
    world.rep.close()
    assert world.hbm.usage().rows == 0


def test_what_is_held_is_the_sum_of_its_parts_with_an_hbm_tier(world: DeviceWorld) -> None:
    world.learn(1.0)
    world.rep.lookup("users", KEYS, device="cpu")
    world.hbm.settle()
    usage = world.store.usage()
    assert usage.hbm_bytes > 0
    parts = usage.dense_bytes + usage.entries_bytes + usage.staging_bytes + usage.free_bytes + usage.rows_bytes
    assert usage.held == parts + usage.hbm_bytes
    assert world.hbm.usage().held == 64 << 10


# --- the queue ----------------------------------------------------------------------------------------------------------------------


def test_a_prefetch_that_falls_behind_passes_over_what_does_not_fit() -> None:
    go_on, moved = threading.Event(), list[int]()
    prefetcher = Prefetcher("test")

    def move(keys: NDArray[np.int64]) -> int:
        assert go_on.wait(WAIT_SECONDS)
        moved.append(len(keys))
        return len(keys)

    half = np.zeros(MAX_WAITING_KEYS // 2, np.int64)
    try:
        assert prefetcher.add(move, half)
        assert prefetcher.add(move, half)
        assert not prefetcher.add(move, half[:1])
        go_on.set()
        assert prefetcher.settle(WAIT_SECONDS)
        counters = prefetcher.counters()
        assert (counters.passed, counters.moved, counters.asked) == (1, MAX_WAITING_KEYS, MAX_WAITING_KEYS + 1)
        assert prefetcher.add(move, np.zeros(2 * MAX_WAITING_KEYS, np.int64)), "one call alone is never too long"
    finally:
        prefetcher.close(WAIT_SECONDS)
    assert moved[:2] == [len(half)] * 2


def test_closing_does_not_wait_for_what_has_not_begun() -> None:
    begun, go_on = threading.Event(), threading.Event()
    prefetcher = Prefetcher("test")

    def move(keys: NDArray[np.int64]) -> int:
        begun.set()
        assert go_on.wait(WAIT_SECONDS)
        return 0

    for _ in range(3):
        prefetcher.add(move, KEYS)
    assert begun.wait(WAIT_SECONDS)
    closing = threading.Thread(target=lambda: prefetcher.close(WAIT_SECONDS))
    closing.start()
    go_on.set()
    closing.join(WAIT_SECONDS)
    assert not closing.is_alive()
    assert prefetcher.counters().waiting == 2 * len(KEYS)


def test_a_prefetch_brings_rows_from_ssd_to_dram_and_to_the_device(tmp_path: Path) -> None:
    """4,000 rows of 1 KiB over 4 MiB of DRAM: half of them lie on SSD, until somebody says what comes next."""
    world, table = World(tmp_path), table_of("wide", "sgd", dim=256)
    world.broker.state.write(table)
    world.broker.durable = {p: writer.position for p, writer in world.broker.writers.items()}
    store = ps.TieredStore("4MiB", hbm="1MiB", ssd=f"{tmp_path / 'tier'}:64MiB")
    rep = world.replica(store=store)
    try:
        for begin in range(0, 4000, 400):
            keys = list(range(begin, begin + 400))
            write_rows(world.broker.state, table, keys, np.arange(begin, begin + 400)[:, None])
            world.settle()
        rows = store.row_tables((world.broker.topic.id, 0))["wide"]
        cold = np.arange(0, 200, dtype=np.int64)
        read = rows.counters().tiers.bytes_read
        assert rep.prefetch("wide", cold)
        assert settled(rep)
        assert rows.counters().tiers.bytes_read > read
        assert rep.prefetches().moved >= 2 * len(cold), "from SSD to DRAM, and on to the device"
        read = rows.counters().tiers.bytes_read
        values = rep.lookup("wide", cold, device="cpu")
        assert isinstance(values, torch.Tensor)
        assert values[:, 0].tolist() == cold.tolist()
        assert rows.counters().tiers.bytes_read == read
        assert store.hbm is not None and store.hbm.counters().misses == 0
        assert [tier.tier for tier in store.tiers()] == ["dram", "ssd", "hbm"]
        assert store.tiers()[-1].read == len(cold)
    finally:
        rep.close()
        store.close()
