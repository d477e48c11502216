"""Processors end to end: each input counts once, whatever becomes of the task, its outputs and its name."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paramstream as ps
from paramstream.consumers.events import Event
from paramstream.producers.session import Session
from processes.child import Child
from processes.power import cut_back
from processes.processor import ONE, TABLE, weights_of
from reference.waiting import eventually


@pytest.fixture
def client(client: ps.Client) -> ps.Client:
    client.create_topic("in", partitions=2)
    client.create_table("in", TABLE, dim=1, optimizer=ps.SGD(1.0))
    client.create_topic("out", partitions=2)
    client.create_table("out", TABLE, dim=1, optimizer=ps.SGD(1.0))
    return client


@pytest.fixture
def trainer(client: ps.Client) -> ps.Publisher:
    return client.publisher("in", producer="trainer")


@ps.processor(source="in", sink="out")
def count(event: Event, state: dict[Any, Any], out: ps.Output) -> None:
    if event.kind == "put":
        state["count"] = state.get("count", 0) + len(event.items)
        out.put(f"count/{event.partition}", b"%d" % state["count"])


def counted(client: ps.Client, topic: str = "out") -> int:
    with client.replica(topic, arrays="numpy") as replica:
        return sum(int(replica.get(f"count/{n}") or b"0") for n in range(2))


def await_count(client: ps.Client, expected: int) -> None:
    eventually(lambda: counted(client) == expected)


def written(client: ps.Client, producer: str) -> list[Event]:
    """The events of one task that stand in "out"."""
    mark = client.publisher("out", producer="mark").put_many({f"mark/{n}": b"" for n in range(32)})
    found: list[Event] = []
    left = dict(mark.positions)
    versions = client.versions("out")
    if versions:
        left["out", 2] = versions[-1].position
    with client.subscribe("out", start="earliest") as events:
        while left:
            event = events.next(10)
            found.append(event)
            if event.position >= left.get(("out", event.partition), event.position + 1):
                del left["out", event.partition]
    return [event for event in found if event.producer == producer]


def test_each_input_of_each_partition_counts_once(client: ps.Client, trainer: ps.Publisher, tmp_path: Path) -> None:
    for n in range(50):
        trainer.put(f"before-{n}", b"1")
    with client.run(count, name="adder", state=tmp_path) as run:
        trainer.put_many({f"while-{n}": b"1" for n in range(50)})
        eventually(lambda: counted(client) == 100)
        status = run.status()
        assert (status.name, status.source, status.sink, sorted(status.tasks)) == ("adder", "in", "out", [0, 1, 2])
        assert [task.producer for task in status.tasks.values()] == ["adder/0", "adder/1", "adder/2"]
        assert all(task.running and task.error is None for task in status.tasks.values())
        assert {each.name for each in client.replicas("in")} == {f"processor adder/{n}" for n in range(3)}
        assert run.wait(0) is False
    assert run.closed and run.wait() is True
    assert all(task.snapshot == task.position for task in run.status().tasks.values())


def test_a_run_goes_on_where_the_one_before_ended(client: ps.Client, trainer: ps.Publisher, tmp_path: Path) -> None:
    for round_number in range(1, 4):
        with client.run(count, name="adder", state=tmp_path):
            trainer.put("key", b"1").durable.result()
            await_count(client, round_number)
    assert [event.items[0][1] for n in range(2) for event in written(client, f"adder/{n}")] == [b"1", b"2", b"3"]


def test_outputs_are_of_every_kind_and_stand_in_the_order_of_the_step(
    client: ps.Client, trainer: ps.Publisher, tmp_path: Path
) -> None:
    @ps.processor(source="in", sink="out")
    def each(event: Event, state: dict[Any, Any], out: ps.Output) -> None:
        if event.kind == "put":
            out.put("a", b"1", ttl=1000.0)
            out.put_many({"b": b"2", "c": b"3"})
            out.delete("b")
            out.publish_rows(TABLE, [1], ONE)
            out.publish_gradients(TABLE, [1, 1], np.ones((2, 1), np.float32))
            out.delete_rows(TABLE, [1])
            out.publish_weights({"w": np.arange(3.0)}, version=4)
            assert (out.topic, out.producer) == ("out", f"each/{event.partition}")

    with client.run(each, name="each", state=tmp_path), client.replica("out", arrays="numpy") as replica:
        receipt = trainer.put("key", b"")
        replica.wait_version(4)
        assert replica.weights()["w"].tolist() == [0, 1, 2]
        assert (replica.get("a"), replica.get("b"), replica.get("c")) == (b"1", None, b"3")
        (place,) = receipt.positions
    events = written(client, f"each/{place[1]}")
    kinds = Counter(event.kind for event in events)
    assert kinds == {"put": kinds["put"], "delete": 1, "rows": 1, "gradients": 1, "delete_rows": 1,
                     "chunk": 1, "part": 1, "commit": 1}  # fmt: skip
    assert all(event.vector[place] == receipt.positions[place] for event in events), "an output rests on its input"


def test_a_step_that_raises_stops_its_task_and_has_written_nothing(
    client: ps.Client, trainer: ps.Publisher, tmp_path: Path
) -> None:
    @ps.processor(source="in", sink="out")
    def fails(event: Event, state: dict[Any, Any], out: ps.Output) -> None:
        count(event, state, out)
        if event.kind == "put" and event.items[0][1] == b"bad":
            raise ZeroDivisionError("of the user")

    run = client.run(fails, name="adder", state=tmp_path)
    trainer.put("key", b"good").durable.result()
    eventually(lambda: counted(client) == 1)
    bad = trainer.put("key", b"bad")
    with pytest.raises(ps.ParamstreamError, match="ZeroDivisionError: of the user") as raised:
        run.wait(10)
    ((_, partition),) = bad.positions
    assert raised.value.position == bad.positions["in", partition]
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    (failed,) = run.status().failed
    assert failed.partition == partition and not failed.running
    with pytest.raises(ps.ParamstreamError, match="of the user"):
        run.close()
    assert counted(client) == 1
    # Once it is mended, nothing is missing and nothing counts twice.
    with client.run(count, name="adder", state=tmp_path):
        eventually(lambda: counted(client) == 2)


def test_what_a_step_writes_is_checked_at_once(client: ps.Client, trainer: ps.Publisher, tmp_path: Path) -> None:
    @ps.processor(source="in", sink="out")
    def wrong(event: Event, state: dict[Any, Any], out: ps.Output) -> None:
        out.put("key", "no bytes")

    with (
        pytest.raises(ps.InvalidEvent, match="a value is a buffer"),
        client.run(wrong, name="n", state=tmp_path) as run,
    ):
        trainer.put("key", b"")
        run.wait(10)


def test_a_state_that_cannot_be_kept_stops_the_task_and_names_the_key(
    client: ps.Client, trainer: ps.Publisher, tmp_path: Path
) -> None:
    @ps.processor(source="in", sink="out")
    def hoards(event: Event, state: dict[Any, Any], out: ps.Output) -> None:
        state["seen"] = {event}

    with pytest.raises(ps.InvalidEvent, match="state\\['seen'\\]"), client.run(hoards, name="n", state=tmp_path) as run:
        trainer.put("key", b"")
        run.wait(10)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_second_run_of_a_name_fences_the_first(
    client: ps.Client, broker: ps.Broker, trainer: ps.Publisher, tmp_path: Path, busy: bool
) -> None:
    first = client.run(count, name="adder", state=tmp_path)
    trainer.put("key", b"1").durable.result()
    eventually(lambda: counted(client) == 1)
    with ps.connect(broker.endpoint) as other, other.run(count, name="adder", state=tmp_path) as second:
        if busy:
            trainer.put_many({f"key-{n}": b"1" for n in range(20)})
        with pytest.raises(ps.Fenced):
            first.wait(10)
        with pytest.raises(ps.Fenced):
            first.close()
        assert all(isinstance(task.error, ps.Fenced) for task in first.status().tasks.values())
        trainer.put("key", b"1").durable.result()
        eventually(lambda: counted(client) == (22 if busy else 2))
        assert not second.status().failed


def test_a_task_that_goes_back_does_not_fence_a_newer_run(
    client: ps.Client, broker: ps.Broker, trainer: ps.Publisher, tmp_path: Path
) -> None:
    in_step, go_on = threading.Event(), threading.Event()

    @ps.processor(source="in", sink="out", weights=False)
    def stalls(event: Event, state: dict[Any, Any], out: ps.Output) -> None:
        in_step.set()
        assert go_on.wait(10)
        raise ps.ParamstreamTimeout("a retriable error: the task goes back")

    first = client.run(stalls, name="adder", state=tmp_path)
    receipt = trainer.put("key", b"1")
    assert in_step.wait(10)
    ((_, partition),) = receipt.positions
    with ps.connect(broker.endpoint) as other, other.run(count, name="adder", state=tmp_path) as second:
        go_on.set()
        eventually(lambda: isinstance(first.status().tasks[partition].error, ps.Fenced))
        eventually(lambda: counted(client) == 1)
        trainer.put("key", b"1").durable.result()
        eventually(lambda: counted(client) == 2)
        assert not second.status().failed
        with pytest.raises(ps.Fenced):
            first.close()


def test_a_version_that_was_half_published_is_published_whole_after_the_crash(
    client: ps.Client, trainer: ps.Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @ps.processor(source="in", sink="out", weights=False)
    def makes(event: Event, state: dict[Any, Any], out: ps.Output) -> None:
        state["n"] = n = state.get("n", 0) + 1
        out.put("before", b"%d" % n)
        out.publish_weights(weights_of(2 * n), version=2 * n)
        out.put("between", b"%d" % n)
        out.publish_weights(weights_of(2 * n + 1), version=2 * n + 1)
        out.put("after", b"%d" % n)

    sent = 0
    add = Session.add

    def crashes(session: Session, *arguments: Any) -> int:
        nonlocal sent
        sent += 1
        if sent == crash_at:
            raise ps.ParamstreamError("the process is killed")
        return add(session, *arguments)

    place = trainer.put("key", b"").positions
    # 3 chunks, a part and a commit each: in the first version, between the two, in the second, before its commit.
    for crash_at in (2, 6, 2, 5):  # noqa: B007 - `crashes` looks at it
        sent = 0
        with monkeypatch.context() as patched:
            patched.setattr(Session, "add", crashes)
            with pytest.raises(ps.ParamstreamError, match="killed"), client.run(makes, "maker", tmp_path) as run:
                run.wait(10)
    with client.run(makes, "maker", tmp_path), client.replica("out", arrays="numpy", catch_up="all") as replica:
        replica.wait_version(3)
        eventually(lambda: replica.get("after") == b"1")
        for version in (2, 3):
            held = replica.weights(version)
            for name, values in weights_of(version).items():
                assert np.asarray(held[name]).tobytes() == values.tobytes() and held[name].shape == values.shape
    assert [info.version for info in client.versions("out")] == [2, 3]
    events = written(client, f"maker/{next(iter(place))[1]}")
    assert Counter(event.kind for event in events if event.kind in ("put", "commit")) == {"put": 3, "commit": 2}


def test_what_the_sink_lost_is_written_again(tmp_path: Path) -> None:
    """A power failure takes outputs that were accepted, of this session and of the one before it."""
    endpoint, folder = f"ipc://{tmp_path / 'broker'}", tmp_path / "log"

    def broker(boot: int) -> Child:
        child = Child("broker", folder, endpoint, f"boot-{boot}", 1 << 28, errors=tmp_path / "stderr")
        child.read(30)
        return child

    child = broker(0)
    try:
        with ps.connect(endpoint) as client:
            client.create_topic("in", partitions=2, persistence="write_through")
            client.create_topic("out", partitions=2)
            trainer = client.publisher("in", producer="trainer")
            first = client.run(count, name="adder", state=tmp_path / "state")
            trainer.put_many({f"one-{n}": b"1" for n in range(40)}).durable.result()
            eventually(lambda: counted(client) == 40)
            # From here on nothing becomes durable. What the tasks see was durable before, what they write is accepted only.
            inputs = [trainer.put(f"two-{n}", b"1") for n in range(200)]
            eventually(lambda: counted(client) > 40)
            child.ask("hold", 30)
            seen = counted(client)
            with pytest.raises(ps.ParamstreamTimeout, match="was not durable"):
                first.close(timeout=0.5)
            child.kill()
            cut_back(folder)
            child = broker(1)
            with client.run(count, name="adder", state=tmp_path / "state") as second:
                stand = 40 + sum(receipt.durable.exception(30) is None for receipt in inputs)
                assert 40 < seen <= 240
                eventually(lambda: counted(client) == stand, timeout=30)
                child.kill()
                cut_back(folder)
                child = broker(2)
                trainer.put("three", b"1").durable.result()
                eventually(lambda: counted(client) == stand + 1, timeout=30)
                assert not second.status().failed
    finally:
        child.kill()


def test_what_cannot_run_is_refused_at_once(client: ps.Client, trainer: ps.Publisher, tmp_path: Path) -> None:
    client.create_topic("fleeting", persistence="none")

    def run(source: str, sink: str, name: Any = "n") -> None:
        client.run(ps.processor(source, sink)(count.function), name=name, state=tmp_path)

    for source, sink in (("fleeting", "out"), ("in", "fleeting")):
        with pytest.raises(ps.NotDurable, match="fleeting"):
            run(source, sink)
    for source, sink in (("nowhere", "out"), ("in", "nowhere")):
        with pytest.raises(ps.UnknownTopic, match="nowhere"):
            run(source, sink)
    for name in ("", "n" * 510, 7):
        with pytest.raises(ps.InvalidEvent):
            run("in", "out", name)
    with pytest.raises(ps.InvalidEvent, match="no processor"):
        client.run(count.function, name="n", state=tmp_path)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.InvalidEvent):
        ps.processor("in", "")


def test_the_folder_of_another_processor_is_refused(client: ps.Client, trainer: ps.Publisher, tmp_path: Path) -> None:
    with client.run(count, name="adder", state=tmp_path):
        trainer.put_many({f"key-{n}": b"1" for n in range(20)}).durable.result()
        eventually(lambda: counted(client) == 20)
    with pytest.raises(ps.InvalidEvent, match="adder/0"):
        client.run(count, name="other", state=tmp_path)


def test_a_source_that_was_made_again_is_another_one(client: ps.Client, trainer: ps.Publisher, tmp_path: Path) -> None:
    run = client.run(count, name="adder", state=tmp_path)
    trainer.put_many({f"key-{n}": b"1" for n in range(20)}).durable.result()
    eventually(lambda: counted(client) == 20)
    eventually(lambda: all(task.snapshot == task.position for task in run.status().tasks.values()))
    client.delete_topic("in")
    client.create_topic("in", partitions=2)
    with pytest.raises(ps.UnknownTopic):
        run.wait(10)
    with pytest.raises(ps.UnknownTopic):
        run.close()
    with pytest.raises(ps.InvalidEvent, match="made anew"):
        client.run(count, name="adder", state=tmp_path)
