"""A replica whose store has an ssd tier: what it serves is what it would serve from memory, wherever that lies."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from feeding.fakes import FakeBroker
from paramstream.consumers import resting
from paramstream.consumers.replica import Replica
from paramstream.consumers.undo import IMAGE_BYTES
from paramstream.errors import CorruptTier, InvalidEvent, LogTruncated, StorageFull, VersionNotHeld
from paramstream.tiers.blobs import Blob
from paramstream.tiers.entries import EntryTable
from paramstream.tiers.store import TieredStore

KIB = 1024
SECOND_NS = 1_000_000_000
ONE = 65 * KIB
"""Memory for one version of `model`, a page more than its values take."""

Arrays = dict[str, npt.NDArray[np.float32]]


def model(value: float) -> Arrays:
    return {
        "layer.weight": np.full((64, 240), value, np.float32),
        "layer.running_mean": np.full(64, -value, np.float32),
        "positions": np.arange(64, dtype=np.float32),
    }


def value_of(number: int) -> bytes:
    return b"%08d" % number * 400


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TieredStore]:
    with TieredStore(dram=1 << 20, ssd=f"{tmp_path / 'tier'}:4MiB") as store:
        yield store


def follow(broker: FakeBroker, store: TieredStore, **options: object) -> Replica:
    options.setdefault("arrays", "numpy")
    return Replica(
        ["model"], directory=broker.directory, make_link=broker.make_link, timeout=2.0, store=store, **options  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def replica(broker: FakeBroker, store: TieredStore) -> Iterator[Replica]:
    with follow(broker, store) as replica:
        yield replica


def publish(broker: FakeBroker, *numbers: int) -> None:
    for number in numbers:
        broker.weights.version(number, model(float(number)))
        broker.settle()
        broker.durable[broker.weights.partition] = broker.weights.position
        broker.beat()


def check(replica: Replica, number: int, version: int | None = None) -> None:
    weights = replica.weights(version)
    assert weights.version == number
    expected = model(float(number))
    assert {name: weights[name].tobytes() for name in weights} == {name: a.tobytes() for name, a in expected.items()}


def dense_bytes(store: TieredStore) -> int:
    usage = store.usage()
    return usage.dense_bytes + usage.free_bytes


def entries_of(broker: FakeBroker, store: TieredStore) -> EntryTable:
    return store.entries(broker.state.partition)


def refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- weights ----------------------------------------------------------------------------------------------------------------------


def test_a_replica_that_rests_gives_its_dram_back_and_is_woken_with_all_its_tensors_C05(
    broker: FakeBroker, replica: Replica, store: TieredStore
) -> None:
    publish(broker, 1, 2)
    digest = replica.digest()
    replica.demote()
    assert dense_bytes(store) == 0
    (_, ssd) = replica.status().tiers
    assert (ssd.tier, ssd.demoted) == ("ssd", 2)
    assert ssd.held >= 2 * ONE - 8 * KIB
    assert (replica.status().version, replica.digest()) == (2, digest)
    replica.promote()
    assert dense_bytes(store) >= ONE - 4 * KIB
    check(replica, 2)
    check(replica, 1, version=1)
    assert replica.digest() == digest


@pytest.mark.parametrize("wake", [Replica.promote, Replica.weights])
def test_what_is_published_while_a_replica_rests_is_what_it_wakes_with_D06(
    broker: FakeBroker, replica: Replica, store: TieredStore, wake: Callable[[Replica], object]
) -> None:
    publish(broker, 6)
    replica.demote()
    publish(broker, 7)
    assert replica.status().version == 7
    # It rests on: what comes goes to SSD too.
    assert dense_bytes(store) == 0
    wake(replica)
    check(replica, 7)
    publish(broker, 8)
    assert dense_bytes(store) >= ONE - 4 * KIB
    check(replica, 8)


def test_no_older_copy_ever_takes_the_place_of_a_newer_version_D01(
    broker: FakeBroker, replica: Replica, store: TieredStore
) -> None:
    publish(broker, 6)
    replica.demote()
    replica.promote()
    publish(broker, 7)
    served = replica.weights().digest
    for _ in range(2):
        replica.demote()
        check(replica, 7)
        replica.demote()
        replica.promote()
        check(replica, 7)
    assert replica.weights().digest == served
    # An older one is served where it is asked for by name.
    replica.demote()
    check(replica, 6, version=6)
    replica.rollback(6)
    check(replica, 6)
    replica.demote()
    replica.follow()
    check(replica, 7)


def test_weights_that_are_read_stay_valid_while_the_replica_rests_and_leave_when_let_go(
    broker: FakeBroker, replica: Replica, store: TieredStore
) -> None:
    publish(broker, 1)
    weights = replica.weights()
    array = weights["layer.weight"]
    replica.demote()
    del weights
    assert (array == 1.0).all() and dense_bytes(store) > 0
    del array
    broker.beat()
    assert dense_bytes(store) == 0
    check(replica, 1)


def test_a_bound_module_keeps_its_values_and_takes_new_ones_while_the_replica_rests(
    broker: FakeBroker, replica: Replica, store: TieredStore
) -> None:
    publish(broker, 1)
    module = torch.nn.Module()
    buffers = {name.removeprefix("layer."): torch.zeros(array.shape) for name, array in model(0.0).items()}
    for name, buffer in buffers.items():
        module.register_buffer(name, buffer)
    bound = replica.bind(module, rename=lambda name: name.removeprefix("layer."))
    replica.demote()
    assert dense_bytes(store) == 0 and bound.version == 1 and bool((buffers["weight"] == 1.0).all())
    publish(broker, 2)
    assert (
        bound.version == 2 and bool((buffers["weight"] == 2.0).all()) and bool((buffers["running_mean"] == -2.0).all())
    )
    assert bound.error is None and dense_bytes(store) == 0
    with bound.hold() as held:
        assert held.version == 2 and (held["layer.weight"] == 2.0).all()
    assert dense_bytes(store) > 0


def test_kept_versions_leave_dram_rather_than_be_given_up(broker: FakeBroker, tmp_path: Path) -> None:
    with (
        TieredStore(dram=3 * ONE, ssd=f"{tmp_path}:4MiB") as store,
        follow(broker, store, keep_versions=6) as replica,
    ):
        publish(broker, *range(1, 9))
        assert not replica.status().stopped
        for number in range(3, 9):
            check(replica, number, version=number)
        check(replica, 8)
        with pytest.raises(VersionNotHeld):
            replica.weights(2)


def test_versions_that_a_loss_brings_back_come_from_ssd(broker: FakeBroker, tmp_path: Path) -> None:
    with TieredStore(dram=3 * ONE, ssd=f"{tmp_path}:4MiB") as store, follow(broker, store, keep_versions=1) as replica:
        publish(broker, 1)
        kept = broker.weights.position
        for number in range(2, 7):
            broker.weights.version(number, model(float(number)))
            broker.settle()
        check(replica, 6)
        broker.weights.open_epoch(end=kept)
        broker.settle()
        check(replica, 1)
        assert not replica.status().stale


def test_what_lies_on_ssd_is_not_given_up_where_dram_is_short(broker: FakeBroker, tmp_path: Path) -> None:
    with (
        TieredStore(dram=5 * ONE // 2, ssd=f"{tmp_path}:4MiB") as store,
        follow(broker, store, keep_versions=1) as replica,
    ):
        publish(broker, 1)
        broker.weights.version(2, model(2.0))
        kept = broker.weights.position
        broker.weights.version(3, model(3.0))
        broker.settle()
        held = replica.weights()
        for number in (4, 5):
            broker.weights.version(number, model(float(number)))
            broker.settle()
        assert replica.status().stopped and held.version == 3
        del held
        for now in (1e6, 2e6):
            broker.beat(now)
        check(replica, 5)
        broker.weights.open_epoch(end=kept)
        broker.settle()
        check(replica, 2)
        assert not replica.status().stale


def test_a_store_without_an_ssd_tier_cannot_rest(broker: FakeBroker) -> None:
    with TieredStore() as store, follow(broker, store) as replica, pytest.raises(InvalidEvent, match="ssd"):
        replica.demote()


def test_what_ssd_does_not_take_stays_served_and_leaves_when_it_does_K07(
    broker: FakeBroker, replica: Replica, store: TieredStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, 1)
    now = [1000.0]
    assert store.spill is not None
    monkeypatch.setattr(store.spill, "_clock", lambda: now[0])
    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(StorageFull) as caught:
            replica.demote()
    assert all(part in str(caught.value) for part in ("ssd", str(tmp_path), "bytes more", "No space left", "'model'"))
    assert replica.status().last_error == replica.status().tiers[1].error != ""
    now[0] += 10.0
    broker.beat()
    assert dense_bytes(store) == 0 and replica.status().tiers[1].error == ""
    check(replica, 1)


# --- entries ----------------------------------------------------------------------------------------------------------------------


def test_values_beyond_dram_are_served_digested_and_undone_as_from_memory(broker: FakeBroker, tmp_path: Path) -> None:
    other = FakeBroker()
    with (
        TieredStore(dram=128 * KIB, ssd=f"{tmp_path}:4MiB") as store,
        follow(broker, store) as replica,
        TieredStore() as large,
        follow(other, large) as reference,
    ):

        def both(act: Callable[[FakeBroker], object]) -> None:
            for each in (broker, other):
                act(each)
                each.durable[each.state.partition] = settled
                each.settle()
                each.beat()
            assert replica.digest() == reference.digest()

        settled = 0
        for number in range(100):
            both(lambda each, n=number: each.state.put(b"k%d" % n, value_of(n), ttl_ns=(n + 1) * SECOND_NS))  # type: ignore[misc]
            settled = broker.state.position
        table = entries_of(broker, store)
        assert sum(isinstance(entry.stored, Blob) for _, entry in table.items()) > 60
        for number in (99, 0, 50, 50, 99):
            assert replica.get(b"k%d" % number) == value_of(number)
        # Changed and expired beyond what is durable, and taken back.
        before = broker.state.position
        for number in range(0, 100, 7):
            both(lambda each, n=number: each.state.put(b"k%d" % n, value_of(n + 1000)))  # type: ignore[misc]
        both(lambda each: each.state.delete(b"k1"))
        for each in (broker, other):
            each.state.time += 30 * SECOND_NS
        both(lambda each: each.state.put(b"last", b"x"))
        assert replica.get(b"k7") == value_of(1007) and replica.get(b"k1") is None and replica.get(b"k2") is None
        both(lambda each: each.state.open_epoch(end=before))
        held = {key: entry.value for key, entry in table.items()}
        assert held[b"k99"] == value_of(99) and b"last" not in held
        settled = broker.state.position
        both(lambda each: each.state.put(b"settles", b"all"))
        assert store.usage().staging_bytes < 4 * IMAGE_BYTES
        assert not replica.status().stopped


def test_a_key_of_any_bytes_and_a_tensor_of_any_name_lie_in_the_folder_only_B06(
    broker: FakeBroker, replica: Replica, store: TieredStore, tmp_path: Path
) -> None:
    names = ["../x", "a/b", "..", "n" * 400, str(tmp_path / "x"), "paramstream-tier.lock"]
    arrays = {name: np.full(600, number, np.float32) for number, name in enumerate(names)}
    for number, name in enumerate(names):
        broker.state.put(name.encode(), value_of(number))
    broker.weights.version(1, arrays)
    broker.settle()
    replica.demote()
    assert entries_of(broker, store).evict(1 << 20) > 0
    inside = tmp_path / "tier"
    assert list(tmp_path.iterdir()) == [inside]
    assert all(name.startswith("paramstream-") and len(name) < 40 for name in os.listdir(inside))
    assert len(os.listdir(inside)) == 2
    assert [replica.get(name) for name in names] == [value_of(number) for number in range(len(names))]
    weights = replica.weights()
    assert all((weights[name] == number).all() for number, name in enumerate(names))


def test_a_full_ssd_stops_what_needs_room_and_it_goes_on_by_itself_K05(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    with TieredStore(dram=64 * KIB, ssd=f"{tmp_path}:1MiB") as store, follow(broker, store) as replica:
        assert store.spill is not None
        monkeypatch.setattr(store.spill, "_clock", lambda: now[0])
        for number in range(12):
            broker.state.put(b"k%d" % number, value_of(number))
            broker.settle()
        broker.durable[broker.state.partition] = broker.state.position
        broker.beat(now[0])
        with monkeypatch.context() as full:
            full.setattr(os, "posix_fallocate", refuse)
            full.setattr(os, "pwrite", refuse)
            for number in range(12, 40):
                broker.state.put(b"k%d" % number, value_of(number))
                broker.settle()
            # What could still be lost waits until it is durable: what it holds for that goes then.
            assert not replica.status().stopped
            broker.durable[broker.state.partition] = broker.state.position
            broker.beat(now[0])
            (error,) = replica.status().stopped.values()
            assert isinstance(error, StorageFull)
            assert all(part in str(error) for part in ("dram", "ssd", str(tmp_path), "bytes more", "No space left"))
            assert [replica.get(b"k%d" % number) for number in range(12)] == [value_of(number) for number in range(12)]
            for _ in range(3):
                now[0] += 2.0
                broker.beat(now[0])
            assert replica.status().stopped
        for _ in range(2):
            now[0] += 2.0
            broker.beat(now[0])
        assert not replica.status().stopped
        assert [replica.get(b"k%d" % number) for number in range(40)] == [value_of(number) for number in range(40)]


def test_a_damaged_value_that_no_log_has_is_a_named_gap_and_all_others_are_right_K03(
    broker: FakeBroker, replica: Replica, store: TieredStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> bytes:
        raise LogTruncated("the log no longer has it")

    monkeypatch.setattr(resting, "refetch_value", gone)
    for number in range(8):
        broker.state.put(b"k%d" % number, value_of(number))
    broker.settle()
    entries_of(broker, store).evict(1 << 20)
    (path,) = (tmp_path / "tier").glob("*.tier")
    with path.open("r+b") as file:
        file.seek(3 * 3200 + 100)
        file.write(b"?")
    for number in range(8):
        if number == 3:
            with pytest.raises(CorruptTier, match=r"model.*b'k3'") as caught:
                replica.get(b"k3")
            assert str(path) in str(caught.value)
        else:
            assert replica.get(b"k%d" % number) == value_of(number)
    assert "b'k3'" in replica.status().last_error
    with pytest.raises(CorruptTier):
        replica.digest()
    broker.state.put(b"k3", value_of(33))
    broker.settle()
    assert replica.get(b"k3") == value_of(33)
    assert len(replica.digest()) == 32


def test_an_entry_on_ssd_ends_in_time_and_is_not_brought_back_by_a_late_touch_M08(
    broker: FakeBroker, replica: Replica, store: TieredStore
) -> None:
    broker.state.put(b"k", value_of(1), ttl_ns=10 * SECOND_NS)
    broker.settle()
    broker.beat()
    entries_of(broker, store).evict(1)
    broker.state.time += 11 * SECOND_NS
    broker.beat()
    assert replica.get(b"k") is None
    broker.state.put(b"k", value_of(2), ttl_ns=10 * SECOND_NS)
    broker.settle()
    broker.beat()
    assert replica.get(b"k") == value_of(2)
    assert store.spill is not None
    assert store.spill.counts.read == 0
