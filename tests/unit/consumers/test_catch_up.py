"""A replica that has fallen behind: what it passes, what it shows meanwhile, and what it says."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from feeding.fakes import FakeBroker
from paramstream.consistency.position import position
from paramstream.consistency.vector import VersionVector
from paramstream.consumers.replica import Replica
from paramstream.errors import InvalidEvent, LogTruncated, ParamstreamTimeout, VersionNotHeld
from paramstream.events.kinds import Chunk, Segment
from paramstream.transport.messages import Report

WEIGHTS = ("model", 1)


def tensors(value: float) -> dict[str, npt.NDArray[np.float32]]:
    return {"w": np.full(4, value, np.float32)}


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@contextmanager
def following(broker: FakeBroker, catch_up: str = "latest") -> Generator[Replica]:
    """A replica that serves version 1."""
    broker.weights.version(1, tensors(1.0))
    options = {"catch_up": catch_up, "arrays": "numpy", "timeout": 2.0}
    with Replica(["model"], directory=broker.directory, make_link=broker.make_link, **options) as replica:  # type: ignore[arg-type]
        replica.wait_version(1, 1.0)
        yield replica


def fall_behind(broker: FakeBroker, versions: range, **stamp: int) -> None:
    """Versions go by that the replica is not sent; the owner knows the last one for the newest."""
    broker.demote(broker.weights.partition)
    broker.fetches.clear()
    start = broker.weights.position
    for number in versions:
        start = broker.weights.position
        broker.weights.version(number, tensors(float(number)))
    broker.latest[broker.weights.partition] = start, broker.weights.position


def stray_chunk(broker: FakeBroker, needed: int) -> None:
    """Of no version, and resting on the entries up to position `needed`."""
    broker.weights.write(Chunk(99, (Segment("x", 0, 1),)), [b"x"], own={broker.state.partition: needed})


def look(broker: FakeBroker, now: float) -> None:
    """The replica's clock goes on before anything arrives."""
    broker.handler.tick(now)
    broker.settle()


def reports(broker: FakeBroker) -> list[Report]:
    return [message for message in broker.sent if isinstance(message, Report)]


def test_versions_between_are_passed_and_the_newest_is_served(broker: FakeBroker) -> None:
    with following(broker) as replica:
        switched: list[int] = []
        replica.on_switch(lambda info: switched.append(info.version))
        fall_behind(broker, range(2, 9))
        look(broker, 10.0)
        replica.wait_version(8, 1.0)
        broker.beat(11.0)
        assert (switched, replica.status().jumping) == ([8], ())
        assert (replica.weights()["w"] == 8.0).all()
        with pytest.raises(VersionNotHeld):
            replica.weights(7)
        broker.weights.version(9, tensors(9.0))
        broker.settle()
        replica.wait_version(9, 1.0)


def test_until_the_target_shows_nothing_that_was_passed_counts_and_the_status_says_so(broker: FakeBroker) -> None:
    with following(broker) as replica:
        before = replica.status().applied[WEIGHTS]
        fall_behind(broker, range(2, 5))
        start, _ = broker.latest[broker.weights.partition]
        # The newest version waits for an entry that is not there yet; another entry waits for what is passed.
        needed = broker.state.position + 2
        for number in (5, 6):
            start = broker.weights.position
            stray_chunk(broker, needed)
            broker.weights.version(number, tensors(float(number)))
        broker.latest[broker.weights.partition] = start, broker.weights.position
        broker.state.put(b"ahead", b"1", own={broker.weights.partition: start})
        broker.settle()
        assert replica.get("ahead") is None
        look(broker, 10.0)
        assert replica.get("ahead") == b"1"
        status = replica.status()
        assert (status.jumping, status.applied[WEIGHTS], status.version) == (("model",), before, 1)
        assert status.lag_events == broker.weights.position - before
        with pytest.raises(ParamstreamTimeout):
            replica.wait(VersionVector({WEIGHTS: start}), timeout=0.05)
        broker.beat(20.0)
        last = reports(broker)[-1]
        assert last.fetching == ((broker.topic.id, broker.latest[broker.weights.partition][1]),)
        assert [where[1] for *where, _ in last.needs] == [0], "versions between need not be kept for it"
        broker.state.put(b"needed", b"2")
        broker.settle()
        replica.wait_version(6, 1.0)
        replica.wait(VersionVector({WEIGHTS: start}), timeout=1.0)
        assert replica.status().jumping == () and replica.vector[WEIGHTS] == broker.weights.position


@pytest.mark.parametrize("newest", [7, 12])
def test_what_a_rewind_superseded_is_not_found_although_the_rewind_was_passed(broker: FakeBroker, newest: int) -> None:
    with following(broker) as replica:
        broker.weights.version(9, tensors(9.0))
        broker.settle()
        replica.wait_version(9, 1.0)
        broker.weights.version(5, tensors(5.0), rewind=True)
        broker.rewinds = ((broker.weights.position, 5),)
        assert replica.weights(9).version == 9
        fall_behind(broker, range(6, newest + 1))
        look(broker, 10.0)
        replica.wait_version(newest, 1.0)
        assert replica.weights().version == newest
        assert replica.weights(1).version == 1
        for superseded in (9, 5):
            with pytest.raises(VersionNotHeld):
                replica.weights(superseded)


def test_a_log_that_was_cut_is_jumped_over(broker: FakeBroker) -> None:
    with following(broker) as replica:
        fall_behind(broker, range(2, 9))
        broker.starts[broker.weights.partition] = broker.latest[broker.weights.partition][0] - 1
        look(broker, 10.0)
        broker.beat(11.0)
        replica.wait_version(8, 1.0)
        assert not replica.status().stopped


def test_with_all_every_version_is_served_in_turn(broker: FakeBroker) -> None:
    with following(broker, "all") as replica:
        switched: list[int] = []
        replica.on_switch(lambda info: switched.append(info.version))
        fall_behind(broker, range(2, 9))
        broker.beat(10.0)
        broker.beat(20.0)
        replica.wait_version(8, 1.0)
        broker.beat(30.0)
        assert switched == list(range(2, 9))
        needs = {where[1]: position for *where, position in reports(broker)[-1].needs}
        assert set(needs) == {0, 1}, "the log is to wait for it"


def test_with_all_a_log_that_was_cut_ends_in_an_error_that_waits_raise(broker: FakeBroker) -> None:
    with following(broker, "all") as replica:
        fall_behind(broker, range(2, 9))
        broker.starts[broker.weights.partition] = broker.latest[broker.weights.partition][0] - 1
        for now in (10.0, 20.0):
            broker.beat(now)
        with pytest.raises(LogTruncated):
            replica.wait_version(8, 1.0)
        status = replica.status()
        assert (list(status.stopped), status.stale, status.version) == ([WEIGHTS], True, 1)
        assert replica.get("k") is None, "entries go on"


def test_a_replica_that_is_too_slow_ends_one_jump_before_the_next(broker: FakeBroker) -> None:
    with following(broker) as replica:
        fall_behind(broker, range(2, 5))
        stray_chunk(broker, broker.state.position + 1)
        start = broker.weights.position - 1
        broker.weights.version(5, tensors(5.0))
        broker.latest[broker.weights.partition] = start, broker.weights.position
        look(broker, 10.0)
        assert replica.status().jumping == ("model",)
        for number in (6, 7):
            start = broker.weights.position
            broker.weights.version(number, tensors(float(number)))
        broker.latest[broker.weights.partition] = start, broker.weights.position
        switched: list[int] = []
        replica.on_switch(lambda info: switched.append(info.version))
        broker.beat(20.0)
        broker.state.put(b"needed", b"")
        broker.beat(30.0)
        replica.wait_version(7, 1.0)
        broker.beat(40.0)
        assert switched[0] == 5


def test_how_to_catch_up_is_latest_or_all(broker: FakeBroker) -> None:
    with pytest.raises(InvalidEvent, match="newest"), following(broker, "newest"):
        pass


def test_a_version_of_which_the_log_has_only_the_end_is_passed_over(broker: FakeBroker) -> None:
    broker.weights.version(1, {"w": np.full(8, 1.0, np.float32)}, chunk_bytes=16)
    broker.starts[broker.weights.partition] = position(5, 1)  # its first chunk is gone
    broker.weights.version(2, {"w": np.full(8, 2.0, np.float32)}, chunk_bytes=16)
    options = {"start": "earliest", "catch_up": "all", "arrays": "numpy", "timeout": 2.0}
    with Replica(["model"], directory=broker.directory, make_link=broker.make_link, **options) as replica:  # type: ignore[arg-type]
        assert replica.status().stopped == {}
        assert (replica.weights().version, replica.weights()["w"].tolist()) == (2, [2.0] * 8)
        with pytest.raises(VersionNotHeld):
            replica.weights(version=1)
        broker.weights.version(3, {"w": np.full(8, 3.0, np.float32)}, chunk_bytes=16)
        broker.settle()
        replica.wait_version(3, 1.0)
