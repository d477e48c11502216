"""A replica over a link without a network: what it serves, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from feeding.fakes import FakeBroker
from paramstream.consistency.vector import VersionVector
from paramstream.consumers.applying import IDLE_STAGED_S
from paramstream.consumers.replica import Replica
from paramstream.consumers.status import STALE_S
from paramstream.errors import CorruptLog, EventLost, InvalidEvent, StorageFull, VersionNotHeld
from paramstream.events.codec import decode_event
from paramstream.events.digest import partition_of
from paramstream.events.kinds import Commit
from paramstream.tiers.store import TieredStore
from paramstream.transport.messages import Demoted, Heads, Heartbeat
from paramstream.transport.wire import WireError

SECOND_NS = 1_000_000_000


def tensors(value: float, count: int = 3) -> dict[str, npt.NDArray[np.float32]]:
    return {f"t{i}": np.full((4, i + 1), value, np.float32) for i in range(count)}


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def follow(broker: FakeBroker, **options: object) -> Replica:
    options.setdefault("arrays", "numpy")
    return Replica(["model"], directory=broker.directory, make_link=broker.make_link, timeout=2.0, **options)  # type: ignore[arg-type]


@pytest.fixture
def replica(broker: FakeBroker) -> Iterator[Replica]:
    with follow(broker) as replica:
        yield replica


def test_a_whole_version_is_served_by_its_commit(broker: FakeBroker, replica: Replica) -> None:
    with pytest.raises(VersionNotHeld):
        replica.weights()
    broker.weights.version(6, tensors(6.0))
    broker.settle()
    replica.wait_version(6, timeout=1.0)
    served = replica.weights()
    assert (served.version, len(served)) == (6, 3)
    assert all((served[name] == 6.0).all() for name in served)
    with pytest.raises(ValueError):
        served["t0"][...] = 1.0


def test_puts_are_read_after_a_wait(broker: FakeBroker, replica: Replica) -> None:
    broker.state.put(b"k", b"1")
    broker.state.put(b"k", b"2")
    broker.settle()
    replica.wait(VersionVector({("model", 0): broker.state.position}), timeout=1.0)
    assert replica.get("k") == b"2"
    broker.state.delete(b"k")
    broker.settle()
    assert replica.get(b"k") is None


def test_a_new_owners_time_counts_as_soon_as_its_epoch_is_reached_L11(broker: FakeBroker, replica: Replica) -> None:
    stamped = broker.state.time
    broker.state.time = stamped + 3600 * SECOND_NS
    broker.beat()
    # Nothing was stamped since, and the new owner's clock is an hour behind.
    broker.state.time = stamped
    broker.state.open_epoch()
    broker.state.put(b"k", b"lasts", ttl_ns=60 * SECOND_NS)
    broker.settle()
    assert replica.get("k") == b"lasts"


def test_what_is_above_the_end_of_an_epoch_is_taken_back(broker: FakeBroker, replica: Replica) -> None:
    broker.state.put(b"k", b"1")
    kept = broker.state.position
    broker.state.put(b"k", b"2")
    broker.state.put(b"new", b"x")
    lost = broker.state.position
    broker.settle()
    assert replica.get("k") == b"2"
    broker.state.open_epoch(end=kept)
    broker.settle()
    assert (replica.get("k"), replica.get("new")) == (b"1", None)
    with pytest.raises(EventLost):
        replica.wait(VersionVector({("model", 0): lost}), timeout=1.0)


def test_a_lost_commit_brings_back_the_version_before(broker: FakeBroker, replica: Replica) -> None:
    weights = broker.weights
    weights.version(6, tensors(6.0))
    kept = weights.position
    broker.durable[weights.partition] = kept
    broker.settle()
    broker.beat()
    for number in (7, 8, 9):
        weights.version(number, tensors(float(number)))
    broker.settle()
    assert replica.weights().version == 9
    weights.open_epoch(end=kept)
    broker.settle()
    assert replica.weights().version == 6
    weights.version(7, tensors(7.5))
    broker.settle()
    assert (replica.weights()["t0"] == 7.5).all()


def test_an_entry_is_hidden_when_its_time_is_over_and_removed_by_a_later_event(broker: FakeBroker) -> None:
    with follow(broker) as replica:
        broker.state.put(b"k", b"1", ttl_ns=10_000_000_000)
        broker.settle()
        broker.beat()
        assert replica.get("k") == b"1"
        with_entry = replica.digest()
        broker.state.time += 11_000_000_000
        broker.beat()
        assert replica.get("k") is None
        assert replica.digest() == with_entry
        broker.state.put(b"other", b"")
        broker.state.delete(b"other")
        broker.settle()
        assert replica.digest() != with_entry


def test_a_version_that_may_yet_be_served_again_is_not_displaced(broker: FakeBroker) -> None:
    with follow(broker, keep_versions=1) as replica:
        weights = broker.weights
        weights.version(1, tensors(1.0))
        kept = weights.position
        for number in (2, 3, 4):
            weights.version(number, tensors(float(number)))
        broker.settle()
        assert replica.weights().version == 4
        weights.open_epoch(end=kept)
        broker.settle()
        assert replica.weights().version == 1


def test_an_entry_removed_by_a_lost_event_comes_back(broker: FakeBroker, replica: Replica) -> None:
    broker.state.put(b"k", b"1", ttl_ns=1_000_000)
    kept, before = broker.state.position, broker.state.time
    broker.settle()
    digest = replica.digest()
    broker.state.time += 10_000_000
    broker.state.put(b"late", b"")
    broker.settle()
    assert replica.digest() != digest
    broker.state.time = before - 1_000_000
    broker.state.open_epoch(end=kept)
    broker.settle()
    # The record's own time is before the deadline: the entry is not removed yet.
    assert replica.digest() == digest


def test_kept_versions_stay_addressable_and_older_ones_go(broker: FakeBroker, replica: Replica) -> None:
    weights = broker.weights
    for number in (1, 2, 3):
        weights.version(number, tensors(float(number)))
        broker.settle()
        broker.durable[weights.partition] = weights.position
        broker.beat()
    old = replica.weights(2)
    assert (old["t0"] == 2.0).all() and replica.weights().version == 3
    with pytest.raises(VersionNotHeld):
        replica.weights(1)
    weights.version(4, tensors(4.0))
    broker.settle()
    assert (old["t2"] == 2.0).all()


def test_a_rewind_supersedes_the_higher_versions(broker: FakeBroker, replica: Replica) -> None:
    for number, rewind in ((8, False), (9, False), (3, True)):
        broker.weights.version(number, tensors(float(number)), rewind=rewind)
    broker.settle()
    assert replica.weights().version == 3
    with pytest.raises(VersionNotHeld):
        replica.weights(9)


def test_tied_names_share_one_array_and_their_bytes_came_once(broker: FakeBroker, replica: Replica) -> None:
    broker.weights.version(1, {"embed.w": np.ones((3, 2), np.float32)}, tied={"head.w": "embed.w"})
    broker.settle()
    served = replica.weights()
    assert served["head.w"] is served["embed.w"]


def test_a_tied_name_that_a_version_leaves_out_has_the_values_of_its_group_C01(
    broker: FakeBroker, replica: Replica
) -> None:
    broker.weights.version(1, {"embed.w": np.zeros((3, 2), np.float32)}, tied={"head.w": "embed.w"})
    broker.weights.version(2, {"embed.w": np.ones((3, 2), np.float32)})
    broker.settle()
    served = replica.weights()
    assert served.version == 2 and (served["head.w"] == 1.0).all()


@pytest.mark.parametrize("chunk_bytes", [64, 100, 1 << 20])
def test_the_cut_into_chunks_changes_nothing_C03(chunk_bytes: int) -> None:
    broker = FakeBroker()
    arrays = {"q": np.arange(32, dtype=np.float32).reshape(4, 8), "kv": np.arange(16, dtype=np.float32).reshape(2, 8)}
    with follow(broker) as replica:
        broker.weights.version(1, arrays, chunk_bytes=chunk_bytes)
        broker.settle()
        served = replica.weights()
        assert all((served[name] == arrays[name]).all() for name in arrays)
        assert served.digest == "08b70038360917defcdb043d551dbbb6"


def test_a_version_without_its_commit_stays_unseen_C03(broker: FakeBroker, replica: Replica) -> None:
    broker.weights.version(4, tensors(4.0))
    broker.settle()
    *most, commit = broker.weights.version(5, tensors(5.0))
    assert most
    del broker.weights.log[broker.weights.position]
    broker.weights.position -= 1
    broker.settle()
    assert commit and replica.weights().version == 4


def test_a_cut_link_leaves_the_old_version_served_and_says_so_D02(broker: FakeBroker, replica: Replica) -> None:
    broker.weights.version(4, tensors(4.0, 4))
    broker.settle()
    broker.beat()
    assert not replica.status().stale
    frames = broker.weights.version(5, tensors(5.0, 4))
    for frame in frames[:2]:
        broker.handler.event(memoryview(frame))
    broker.disconnect()
    assert all((replica.weights()[name] == 4.0).all() for name in replica.weights())
    status = replica.status()
    assert status.stale and not status.connected and status.served["model"].version == 4
    broker.connect()
    assert replica.weights().version == 5 and replica.status().connected


def test_chunks_dropped_for_memory_are_fetched_again_for_their_commit() -> None:
    broker = FakeBroker()
    big = {f"t{i}": np.full((64 * 1024,), float(i), np.float32) for i in range(8)}
    with TieredStore(dram="3MiB") as store, follow(broker, store=store, keep_versions=1) as replica:
        broker.weights.version(1, big, chunk_bytes=200_000)
        broker.settle()
        served = replica.weights()
        assert all((served[name] == big[name]).all() for name in big)
        assert not replica.status().stopped


def test_a_version_larger_than_the_store_stops_the_weights_and_names_the_bytes(broker: FakeBroker) -> None:
    with TieredStore(dram="256KiB") as store, follow(broker, store=store) as replica:
        broker.weights.version(1, {"t": np.zeros(256 * 1024, np.float32)})
        broker.state.put(b"k", b"goes on")
        broker.settle()
        (error,) = replica.status().stopped.values()
        assert isinstance(error, StorageFull) and error.topic == "model"
        assert replica.get("k") == b"goes on"
        with pytest.raises(StorageFull):
            replica.wait_version(1, timeout=1.0)


def test_a_partition_that_stopped_with_its_broker_goes_on_with_the_next_one(
    broker: FakeBroker, replica: Replica
) -> None:
    broker.state.put(b"k", b"old")
    broker.settle()
    failed = WireError.of(CorruptLog("a sync failed"))
    broker.handler.message(Demoted(*broker.state.partition, broker.state.position, 0, failed))
    broker.handler.drained()
    assert list(replica.status().stopped) == [("model", 0)]
    for name, value in (("broker-1", b"old"), ("broker-2", b"new")):
        broker.disconnect()
        broker.state.put(b"k", b"new")
        broker.name = name
        broker.connect()
        assert replica.get("k") == value
    assert not replica.status().stopped


def test_a_topic_with_another_id_is_served_once_it_has_a_version(broker: FakeBroker, replica: Replica) -> None:
    broker.weights.version(6, tensors(6.0))
    broker.state.put(b"k", b"old")
    broker.settle()
    broker.disconnect()
    broker.replace_topic()
    broker.connect()
    broker.beat()
    broker.beat()
    assert replica.weights().version == 6 and replica.status().served["model"].stale
    assert replica.get("k") is None
    broker.weights.version(1, tensors(1.0))
    broker.settle()
    assert replica.weights().version == 1 and not replica.status().served["model"].stale
    assert not replica.status().stopped


def test_without_persistence_a_new_epoch_clears_entries_and_keeps_the_version_marked_stale() -> None:
    broker = FakeBroker(persistence="none")
    with follow(broker) as replica:
        broker.weights.version(6, tensors(6.0))
        broker.state.put(b"k", b"1")
        broker.settle()
        seen = replica.vector
        for writer in broker.writers.values():
            writer.open_epoch(end=0)
        broker.settle()
        assert replica.get("k") is None
        assert replica.weights().version == 6 and replica.status().served["model"].stale
        with pytest.raises(EventLost):
            replica.wait(seen, timeout=1.0)
        broker.weights.version(7, tensors(7.0))
        broker.settle()
        assert replica.weights().version == 7 and not replica.status().served["model"].stale


def test_a_replica_starts_complete_as_of_the_call(broker: FakeBroker) -> None:
    broker.weights.version(6, tensors(6.0))
    broker.state.put(b"k", b"1")
    with follow(broker) as replica:
        assert (replica.weights().version, replica.get("k")) == (6, b"1")


def test_only_the_state_partitions_asked_for_are_followed() -> None:
    broker = FakeBroker(partitions=4)
    with follow(broker, partitions=[1, 2]) as replica:
        assert {partition for _, partition in replica.status().applied} == {1, 2, 4}
        key = next(k for k in (b"%d" % i for i in range(99)) if partition_of(k, 4) == 3)
        with pytest.raises(InvalidEvent):
            replica.get(key)


def test_a_reader_that_spins_through_500_commits_sees_only_whole_versions(broker: FakeBroker) -> None:
    with follow(broker) as replica:
        broker.weights.version(0, tensors(0.0, 50))
        broker.settle()
        digests: dict[int, str] = {}
        seen: list[tuple[int, str, set[float]]] = []
        done, read = threading.Event(), threading.Event()

        def spin() -> None:
            while not done.is_set():
                served = replica.weights()
                seen.append((served.version, served.digest, {float(served[name].flat[0]) for name in served}))
                read.set()

        thread = threading.Thread(target=spin)
        thread.start()
        try:
            for number in range(1, 501):
                if number % 10 == 0:
                    # However the threads are scheduled, the reader sees many of the versions.
                    read.clear()
                    assert read.wait(10.0)
                commit = decode_event(broker.weights.version(number, tensors(float(number), 50))[-1]).payload
                assert isinstance(commit, Commit)
                digests[number] = commit.digest.hex()
                broker.settle()
        finally:
            done.set()
            thread.join(10.0)
        assert len({version for version, _, _ in seen}) > 20
        for version, digest, values in seen:
            assert values == {float(version)} and digest == digests.get(version, digest)


@pytest.mark.parametrize("like_the_one_served", [True, False])
def test_what_a_producer_left_behind_gives_its_memory_back_and_is_fetched_again_for_a_late_commit_G09(
    broker: FakeBroker, like_the_one_served: bool
) -> None:
    with TieredStore() as store, follow(broker, store=store) as replica:
        if like_the_one_served:
            broker.weights.version(1, tensors(1.0))
        broker.settle()
        before = store.usage()
        *staged, commit = broker.weights.version(2, tensors(2.0))
        for frame in staged:
            broker.handler.event(memoryview(frame))
        held = store.usage()
        assert held.dense_bytes + held.staging_bytes > before.dense_bytes + before.staging_bytes
        for now in (0.0, IDLE_STAGED_S - 1.0):
            broker.handler.tick(now)
            assert store.usage() == held
        broker.handler.tick(IDLE_STAGED_S)
        freed = store.usage()
        assert (freed.dense_bytes, freed.staging_bytes) == (before.dense_bytes, before.staging_bytes)
        broker.handler.event(memoryview(commit))
        broker.settle()
        assert replica.weights().version == 2 and (replica.weights()["t1"] == 2.0).all()


def test_one_broker_of_two_that_falls_silent_makes_a_replica_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    broker = FakeBroker()
    with follow(broker) as replica:
        broker.beat()
        now[0] += STALE_S + 0.1
        state = (broker.topic.id, 0)
        broker.handler.message(Heartbeat((Heads(*state, broker.state.position, 0, broker.state.position, 0),)))
        status = replica.status()
        assert status.stale and status.age_s > STALE_S, "nothing was heard of the weights"
        broker.beat()
        assert not replica.status().stale
