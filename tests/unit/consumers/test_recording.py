"""What a replica records: what it applies, what its users read where it is known which write they saw, and what it took back."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from feeding.fakes import FakeBroker
from feeding.rows import delete_rows, table_of, write_gradients, write_rows
from paramstream.consistency.gate import Ordering
from paramstream.consistency.history import Apply, Epoch, Follow, Jump, Line, Lost, Read, Undo, Write, read_lines
from paramstream.consistency.position import position, show
from paramstream.consistency.vector import PartitionId, VersionVector
from paramstream.consumers.applying import Applier, TopicState
from paramstream.consumers.effects import Jump as JumpStep
from paramstream.consumers.recording import ReplicaRecorder
from paramstream.consumers.replica import Replica
from paramstream.consumers.subscription_core import SubscriptionCore
from paramstream.events.codec import EventFrame
from paramstream.events.kinds import Put
from paramstream.events.recording import HistoryFile
from paramstream.tiers.store import TieredStore
from paramstream.transport.calls import TopicRecord

TOPIC = "model#0000004d"
STATE, WEIGHTS = f"{TOPIC}/0", f"{TOPIC}/1"
ME = "r0/1"


def kv(key: str) -> str:
    return f"{TOPIC}/kv/{key}"


def tensors(value: float) -> dict[str, npt.NDArray[np.float32]]:
    return {"w": np.full(4, value, np.float32)}


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


class Recorded:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = HistoryFile(path)
        self._taken = 0

    def take(self) -> list[Line]:
        """The lines since the last time."""
        lines = [line for _, line in read_lines(self.path)]
        new, self._taken = lines[self._taken :], len(lines)
        return new

    def reads(self) -> list[tuple[str, object]]:
        """(key, value) of the reads since the last time."""
        return [(r.key.removeprefix(f"{TOPIC}/"), r.value) for r in self.take() if isinstance(r, Read)]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[Recorded]:
    recorded = Recorded(tmp_path / "history.jsonl")
    yield recorded
    recorded.file.close()


@contextmanager
def following(broker: FakeBroker, history: Recorded, **options: object) -> Generator[Replica]:
    with Replica(
        ["model"], directory=broker.directory, make_link=broker.make_link, name="r0", arrays="numpy", timeout=2.0,
        history=history.file, **options,  # type: ignore[arg-type]
    ) as replica:  # fmt: skip
        yield replica


def test_a_replica_records_where_it_begins_and_reads_what_it_applies(broker: FakeBroker, history: Recorded) -> None:
    with following(broker, history, ordering=Ordering.PRAM):
        broker.state.put(b"k", b"1", own={broker.weights.partition: broker.weights.position, (5, 0): 1})
        broker.settle()
    state, weights = broker.state.position, broker.weights.position
    assert history.take() == [
        Follow(ME, Ordering.PRAM, STATE, 0),
        Follow(ME, Ordering.PRAM, WEIGHTS, 0),
        Epoch(ME, STATE, position(5, 0)),
        Epoch(ME, WEIGHTS, position(5, 0)),
        Apply(ME, STATE, state, {WEIGHTS: weights}, {}),
        Read(ME, kv("k"), "p/1/1", "p/1"),
    ]


def test_users_read_the_write_that_the_entry_came_from(broker: FakeBroker, history: Recorded) -> None:
    with following(broker, history) as replica:
        broker.state.put(b"k", b"1")
        broker.settle()
        history.take()
        assert replica.get_many(["k", "none"]) == [b"1", None]
        assert history.reads() == [("kv/k", "p/1/1"), ("kv/none", None)]
        broker.state.delete(b"k")
        broker.settle()
        assert replica.get("k") is None
        assert history.reads() == [("kv/k", "p/1/2"), ("kv/k", "p/1/2")]


def row(key: int) -> str:
    return f"rows/t/{key}"


def test_users_read_the_write_that_a_row_came_from(broker: FakeBroker, history: Recorded) -> None:
    table, partition = table_of("t", "sgd"), broker.state.partition
    with following(broker, history) as replica:
        broker.state.write(table)
        write_rows(broker.state, table, [1, 2], 1.0)
        broker.durable[partition] = broker.state.position
        broker.beat()
        assert history.reads() == [(row(1), "p/1/2"), (row(2), "p/1/2")]
        write_gradients(broker.state, table, [2, 300, 2], 1.0)
        broker.settle()
        assert history.reads() == [(row(2), "p/1/3")]
        replica.lookup("t", [1, 2, 2, 3, 300])
        assert history.reads() == [(row(1), "p/1/2"), (row(2), "p/1/3"), (row(3), None)]
        delete_rows(broker.state, table, [1])
        broker.settle()
        replica.lookup("t", [1])
        assert history.reads() == [(row(1), "p/1/4"), (row(1), "p/1/4")]


def test_rows_on_a_device_are_read_as_any_others(broker: FakeBroker, history: Recorded) -> None:
    table, partition = table_of("t", "sgd"), broker.state.partition
    with TieredStore("16MiB", hbm="64KiB") as store, following(broker, history, store=store) as replica:
        broker.state.write(table)
        write_rows(broker.state, table, [1, 2], 1.0)
        broker.durable[partition] = broker.state.position
        broker.beat()
        history.take()
        replica.lookup("t", [1, 3], device="cpu")
        assert history.reads() == [(row(1), "p/1/2"), (row(3), None)]
        with replica.hold_rows("t", [2]):
            assert history.reads() == [(row(2), "p/1/2")]


def test_nothing_is_said_of_rows_that_a_deletion_may_have_spared(broker: FakeBroker, history: Recorded) -> None:
    table = table_of("t", "sgd")
    with following(broker, history) as replica:
        broker.state.write(table)
        write_rows(broker.state, table, [1], 1.0)
        kept = broker.state.position
        write_rows(broker.state, table, [2], 1.0)
        broker.durable[broker.state.partition] = broker.state.position
        broker.beat()
        delete_rows(broker.state, table, [1, 2], up_to=kept)
        broker.settle()
        history.take()
        assert replica.lookup("t", [1, 2], return_found=True)[1].tolist() == [False, True]
        assert history.take() == []
        broker.state.open_epoch(end=broker.state.position - 1)
        broker.settle()
        assert not any(isinstance(line, Lost) for line in history.take())
        replica.lookup("t", [1, 2])
        assert history.reads() == [(row(1), "p/1/2"), (row(2), "p/1/3")]


def apply_no_rows(applier: Applier, partition: PartitionId, position: int, change: object) -> None:
    """In the place of `Applier._change_rows`."""


def test_a_row_that_a_later_write_had_replaced_is_a_read_of_the_older_one(
    broker: FakeBroker, history: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of("t", "sgd")
    with following(broker, history) as replica:
        broker.state.write(table)
        write_rows(broker.state, table, [1], 1.0)
        broker.durable[broker.state.partition] = broker.state.position
        broker.beat()
        monkeypatch.setattr(Applier, "_change_rows", apply_no_rows)
        write_gradients(broker.state, table, [1, 2], 1.0)
        broker.settle()
        history.take()
        replica.lookup("t", [1, 2])
        assert history.reads() == [(row(1), "p/1/2"), (row(2), None)]


def apply_nothing(applier: Applier, partition: PartitionId, frame: EventFrame, put: Put) -> None:
    """In the place of `Applier._put`."""


def test_an_entry_that_a_later_write_had_replaced_is_a_read_of_the_older_one(
    broker: FakeBroker, history: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(broker, history) as replica:
        broker.state.put(b"k", b"1")
        first = broker.state.position
        broker.settle()
        monkeypatch.setattr(Applier, "_put", apply_nothing)
        broker.state.put(b"new", b"2")
        broker.state.put(b"k", b"2")
        broker.settle()
        history.take()
        assert replica.get_many(["k", "new"]) == [b"1", None]
        assert history.reads() == [("kv/k", "p/1/1"), ("kv/new", None)]
        broker.durable[broker.state.partition] = broker.state.position
        broker.beat()
        broker.state.put(b"k", b"3")
        broker.settle()
        history.take()
        assert replica.get("k") == b"1"
        assert history.take() == [Read(ME, kv("k"), f"what stands at {show(first)}")]


def test_a_version_that_a_later_one_had_replaced_is_a_read_of_the_older_one(
    broker: FakeBroker, history: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(broker, history) as replica:
        broker.weights.version(1, tensors(1.0))
        broker.weights.version(2, tensors(2.0))
        broker.settle()
        history.take()
        monkeypatch.setattr(TopicState, "newest", property(lambda topic: topic.versions.kept[0]))
        replica.weights()
        assert history.reads() == [("weights", "p/1/3")]


def test_a_miss_that_no_write_explains_is_not_recorded(broker: FakeBroker, history: Recorded) -> None:
    with following(broker, history) as replica:
        broker.state.put(b"soon", b"1", ttl_ns=1_000_000_000)
        broker.settle()
        broker.beat()
        assert (replica.get("soon"), history.reads()) == (b"1", [("kv/soon", "p/1/1")] * 2)
        broker.state.time += 2_000_000_000
        broker.beat()
        assert (replica.get("soon"), history.reads()) == (None, [])
        broker.state.put(b"other", b"")
        broker.settle()
        history.take()
        assert (replica.get("soon"), history.reads()) == (None, [])


def test_what_is_taken_back_is_lost_and_users_read_what_was_there_before(broker: FakeBroker, history: Recorded) -> None:
    with following(broker, history) as replica:
        broker.state.put(b"k", b"1")
        kept = broker.state.position
        broker.state.put(b"k", b"2")
        broker.state.put(b"new", b"2")
        broker.settle()
        history.take()
        broker.state.open_epoch(end=kept)
        broker.settle()
        assert history.take() == [
            Undo(ME, STATE, kept),
            Lost(ME, kv("new"), "p/1/3"),
            Lost(ME, kv("k"), "p/1/2"),
            Epoch(ME, STATE, broker.state.position),
        ]
        assert replica.get_many(["k", "new"]) == [b"1", None]
        assert history.reads() == [("kv/k", "p/1/1"), ("kv/new", None)]


def test_what_is_durable_is_kept_only_as_far_as_somebody_can_still_read_it(
    broker: FakeBroker, history: Recorded
) -> None:
    with following(broker, history) as replica:
        for _ in range(5):
            broker.state.put(b"k", b"1")
            broker.settle()
            broker.durable[broker.state.partition] = broker.state.position
            broker.beat()
        history.take()
        kept = broker.state.position
        broker.state.put(b"k", b"2")
        broker.settle()
        broker.state.open_epoch(end=kept)
        broker.settle()
        assert history.reads() == [("kv/k", "p/1/6")]
        assert replica.get("k") == b"1" and history.reads() == [("kv/k", "p/1/5")]


def test_under_persistence_none_an_epochs_end_loses_all_and_no_miss_is_an_initial_value(history: Recorded) -> None:
    broker = FakeBroker(persistence="none")
    with following(broker, history) as replica:
        broker.state.put(b"k", b"1")
        broker.durable[broker.state.partition] = broker.state.position
        broker.settle()
        broker.beat()
        broker.state.put(b"later", b"1")
        broker.settle()
        assert replica.get("none") is None
        broker.state.open_epoch(end=0)
        broker.settle()
        assert replica.get("k") is None
        lines = history.take()
    assert [line for line in lines if isinstance(line, Lost)] == [
        Lost(ME, kv("later"), "p/1/2"),
        Lost(ME, kv("k"), "p/1/1"),
    ]
    assert None not in [line.value for line in lines if isinstance(line, Read)]


def test_what_a_replica_begins_with_is_no_read_of_a_write_that_it_did_not_apply(
    broker: FakeBroker, history: Recorded, tmp_path: Path
) -> None:
    broker.state.put(b"k", b"1")
    broker.weights.version(1, tensors(1.0))
    for writer in broker.writers.values():
        broker.durable[writer.partition] = writer.position
    with Replica(["model"], directory=broker.directory, make_link=broker.make_link, timeout=2.0) as first:
        broker.settle()
        broker.beat()
        first.snapshot(tmp_path / "snapshots")
    with following(broker, history, start=f"snapshot:{tmp_path / 'snapshots'}") as replica:
        assert replica.get_many(["k", "none"]) == [b"1", None]
        assert replica.weights().version == 1
        assert history.reads() == []
        broker.state.put(b"k", b"2")
        broker.settle()
        assert replica.get("k") == b"2"
        assert history.reads() == [("kv/k", "p/1/2")] * 2


def test_users_read_the_commit_of_the_weights_served_and_none_that_was_asked_for_by_number(
    broker: FakeBroker, history: Recorded
) -> None:
    with following(broker, history) as replica:
        broker.weights.version(1, tensors(1.0))
        broker.weights.version(2, tensors(2.0))
        broker.settle()
        assert history.reads() == [("weights", "p/1/3"), ("weights", "p/1/6")]
        replica.weights()
        replica.weights(1)
        assert history.reads() == [("weights", "p/1/6")]
        replica.rollback(1)
        replica.weights()
        assert history.reads() == []
        replica.follow()
        replica.weights()
        assert history.reads() == [("weights", "p/1/6")]


def test_while_weights_are_jumped_over_they_are_not_read(broker: FakeBroker, history: Recorded) -> None:
    with following(broker, history) as replica:
        broker.weights.version(1, tensors(1.0))
        broker.settle()
        weights = broker.weights.partition
        broker.demote(weights)
        broker.fetches.clear()
        for number in (2, 3, 4):
            broker.weights.version(number, tensors(float(number)))
        start = broker.weights.position
        broker.weights.version(5, tensors(5.0), chunk_bytes=4)
        broker.latest[weights] = start, broker.weights.position
        history.take()
        broker.frames_per_fetch = 1
        broker.handler.tick(10.0)
        assert replica.status().jumping == ("model",)
        replica.weights()
        assert history.take() == [Jump(ME, WEIGHTS, start)]
        broker.settle()
        replica.wait_version(5, 1.0)
        replica.weights()
        lines = history.take()
    passed = [line.position for line in lines if isinstance(line, Jump)]
    assert passed == list(range(start + 1, broker.weights.position))
    assert lines[-2:] == [Read(ME, f"{TOPIC}/weights", lines_value(broker), "p/1")] * 2


def lines_value(broker: FakeBroker) -> str:
    """The identity of the last event in the weight partition."""
    return f"p/1/{broker.weights.position - position(5, 0)}"


def test_an_item_whose_later_write_was_lost_is_not_read_once_something_rests_on_that(
    broker: FakeBroker, history: Recorded
) -> None:
    """Whoever wrote it may be dead, and the replicas that had it too: then nobody says that it was lost."""
    broker = FakeBroker(partitions=2)
    one, other = broker.writers[77, 0], broker.writers[77, 1]
    with following(broker, history) as replica:
        one.put(b"2", b"1")
        kept, lost = one.position, one.position + 1
        broker.settle()
        one.open_epoch(end=kept)
        broker.settle()
        assert replica.get("2") == b"1" and history.reads() == [("kv/2", "p/1/1")] * 2
        other.put(b"0", b"1", observed={(77, 0): lost})
        broker.settle()
        history.take()
        assert replica.get("2") == b"1" and history.reads() == []
        one.put(b"2", b"2")
        broker.settle()
        assert replica.get("2") == b"2" and history.reads() == [("kv/2", "p/1/2")] * 2


def test_an_observed_replica_writes_a_token_for_what_it_has_read(broker: FakeBroker, history: Recorded) -> None:
    with following(broker, history) as replica:
        history.take()
        vector, token = replica.observed()
        assert replica.observed() == (vector, token) and token is not None
        assert token.vector == VersionVector({p: w.position for p, w in broker.writers.items()})
        broker.state.put(b"k", b"1")
        broker.settle()
        _, later = replica.observed()
        assert later is not None and (token.number, later.number) == (1, 2)
        lines = [line for line in history.take() if isinstance(line, Write | Read)]
    assert lines == [
        Write(ME, f"seen/{ME}", 1),
        Read(ME, kv("k"), "p/1/1", "p/1"),
        Write(ME, f"seen/{ME}", 2),
    ]


def test_a_replica_that_records_nothing_has_no_token(broker: FakeBroker) -> None:
    with Replica(["model"], directory=broker.directory, make_link=broker.make_link, timeout=2.0) as replica:
        assert replica.observed() == (replica.vector, None)


def test_a_topic_that_takes_the_name_of_another_one_begins_a_process_and_keys_of_its_own(
    broker: FakeBroker, history: Recorded
) -> None:
    with following(broker, history) as replica:
        broker.state.put(b"k", b"1")
        broker.settle()
        history.take()
        broker.disconnect()
        broker.replace_topic()
        broker.connect()
        broker.beat(5.0)
        broker.beat(10.0)
        broker.state.put(b"k", b"2")
        broker.settle()
        assert replica.get("k") == b"2"
        lines = history.take()
    assert Follow(f"{ME}+1", Ordering.CAUSAL, "model#0000004e/0", 0) in lines
    assert {line.process for line in lines} == {f"{ME}+1"}
    assert lines[-1] == Read(f"{ME}+1", "model#0000004e/kv/k", "p/1/1", "p/1")


def test_who_begins_with_a_snapshot_and_goes_back_for_the_newest_version_follows_from_there(history: Recorded) -> None:
    partition, store = (0x4D, 1), TieredStore()
    core = SubscriptionCore(Ordering.PRAM, {partition: position(5, 7)})
    applier = Applier(store, 2)
    applier.add(TopicRecord("model", 0x4D, 1, "write_back", 8), [])
    recorder = ReplicaRecorder(history.file, ME, Ordering.PRAM, core, applier, lambda topic: "model")
    history.take()
    for start, line in [
        (5, Follow(ME, Ordering.PRAM, WEIGHTS, position(5, 5))),
        (8, Jump(ME, WEIGHTS, position(5, 8))),
    ]:
        core.jump(partition, position(5, start), position(5, 9))
        step = next(step for step in core.steps() if isinstance(step, JumpStep))
        core.confirm(step)
        recorder.applied(step)
        assert history.take() == [line]
    applier.close()
    store.close()
