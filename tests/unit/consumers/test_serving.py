"""A served address answers what is asked, whatever else comes, and leaves nothing behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from fakes.served_source import TABLE, TOPIC, FakeSource, rows_of
from paramstream.consumers.lookups import serving as serving_module
from paramstream.consumers.lookups.answers import read_rows
from paramstream.consumers.lookups.serving import Serving
from paramstream.consumers.lookups.waking import Wake
from paramstream.errors import AccessDenied, BindFailed, InvalidEvent, ParamstreamTimeout
from paramstream.transport.lookup_lines import Line
from paramstream.transport.lookups import (
    AnyAnswer,
    Declined,
    FoundRows,
    LookUp,
    Need,
    decode_answer,
    encode_frame,
)
from reference.waiting import eventually


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def serving(source: FakeSource, tmp_path: Path) -> Iterator[Serving]:
    with Serving(source, f"ipc://{tmp_path}/s", "r") as served:
        yield served


@pytest.fixture
def line(serving: Serving) -> Iterator[Line]:
    connected = Line(serving.endpoint)
    yield connected
    connected.close()


def question(number: int, *needs: Need, wait_s: float = 5.0) -> bytes:
    return encode_frame(LookUp(number, TOPIC, (0,), needs, wait_s, TABLE), np.array([2, 3], np.int64).tobytes())


def next_answer(line: Line, timeout: float = 5.0) -> tuple[AnyAnswer, memoryview]:
    assert line.socket.poll(int(timeout * 1000)), "no answer came"
    frame = line.receive()
    assert frame is not None
    return decode_answer(frame)


def test_questions_are_answered_over_the_wire(line: Line, serving: Serving) -> None:
    assert line.send(question(4))
    told, bulk = next_answer(line)
    assert isinstance(told, FoundRows) and told.id == 4
    assert np.array_equal(read_rows(told, bulk, 2)[0], rows_of(np.array([2, 3])))
    assert serving.counters().questions == 1


def test_what_is_no_question_is_counted_and_the_next_one_answered(line: Line, serving: Serving) -> None:
    for garbage in (b"", b"PL", b"PC\x01\x90", b"PL\x01\xff\xff\xff\xff", os.urandom(100)):
        line.send(garbage)
    line.socket.send_multipart([question(1), b"and more"])
    line.send(question(2))
    assert next_answer(line)[0].id == 2
    assert serving.counters().garbled_frames == 6


def test_who_sends_too_much_at_once_is_cut_off_alone(line: Line, serving: Serving) -> None:
    other = Line(serving.endpoint)
    try:
        other.send(bytes(3 * 1024 * 1024))
        assert eventually(other.gone)
        line.send(question(1))
        assert next_answer(line)[0].id == 1
    finally:
        other.close()


def test_a_question_waits_aside_and_holds_up_nobody(line: Line, serving: Serving, source: FakeSource) -> None:
    line.send(question(1, Need(0, 11, True)))
    line.send(question(2))
    assert next_answer(line)[0].id == 2
    assert eventually(lambda: serving.counters().aside) == 1
    source.positions[0] = 11
    began = time.monotonic()
    serving.wake()
    told, _ = next_answer(line)
    assert told.id == 1 and time.monotonic() - began < 2
    assert eventually(lambda: not serving.counters().aside)


def test_what_comes_without_anybody_saying_so_is_found_all_the_same(line: Line, source: FakeSource) -> None:
    line.send(question(1, Need(0, 11, True)))
    assert not line.socket.poll(100)
    source.positions[0] = 11
    assert next_answer(line)[0].id == 1


def test_a_question_that_has_waited_for_its_time_is_told_what_lacks(line: Line) -> None:
    line.send(question(1, Need(0, 11, True), wait_s=0.05))
    told, _ = next_answer(line)
    assert isinstance(told, Declined) and told.elsewhere
    assert isinstance(told.error.raised(), ParamstreamTimeout)


def test_only_so_many_questions_wait_and_further_ones_go_elsewhere(
    line: Line, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_module, "MAX_ASIDE", 2)
    for number in (1, 2, 3):
        line.send(question(number, Need(0, 11, True)))
    told, _ = next_answer(line)
    assert isinstance(told, Declined) and (told.id, told.elsewhere) == (3, True)
    assert serving.counters().aside == 2


def test_a_client_that_takes_no_answers_costs_those_and_nothing_more(line: Line, serving: Serving) -> None:
    lazy = Line(serving.endpoint)
    try:
        deadline = time.monotonic() + 10
        while not serving.counters().dropped:
            assert time.monotonic() < deadline, "every answer found its place"
            lazy.send(encode_frame(LookUp(1, TOPIC, (0,), (), 0.0, TABLE), bytes(8 * 60_000)))
        line.send(question(2))
        assert next_answer(line)[0].id == 2
    finally:
        lazy.close()


def test_close_ends_the_thread_and_gives_the_address_back_even_while_questions_wait(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    ended: list[bool] = []
    serving = Serving(FakeSource(), address, "r", on_close=lambda: ended.append(True))
    line = Line(address)
    try:
        line.send(question(1, Need(0, 11, True)))
        eventually(lambda: serving.counters().aside)
        before = open_descriptors()
        serving.close()
        serving.close()
        serving.wake()
        assert ended == [True] and not [t for t in threading.enumerate() if t.name == "paramstream-serving-r"]
        assert eventually(line.gone)
        assert eventually(lambda: open_descriptors() < before)
        Serving(FakeSource(), address, "r").close()
    finally:
        line.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_addresses_that_cannot_be_served_are_refused_by_a_brokers_rules(tmp_path: Path, serving: Serving) -> None:
    with pytest.raises(AccessDenied):
        Serving(FakeSource(), "tcp://192.0.2.1:0", "r")
    with pytest.raises(InvalidEvent, match="advertise"):
        Serving(FakeSource(), "tcp://0.0.0.0:0", "r", insecure=True)
    with pytest.raises(BindFailed):
        Serving(FakeSource(), serving.endpoint, "r")
    with Serving(FakeSource(), "tcp://0.0.0.0:0", "r", insecure=True, advertise="tcp://here.example:1") as wide:
        assert wide.endpoint == "tcp://here.example:1"


def test_a_thread_is_woken_once_for_all_that_happened_and_not_after_its_end() -> None:
    wake = Wake()
    poller = zmq.Poller()
    poller.register(wake, zmq.POLLIN)
    assert not poller.poll(0) and not wake.taken()
    for _ in range(100_000):
        wake.up()
    assert poller.poll(0)
    while wake.taken():
        pass
    assert not poller.poll(0)
    wake.close()
    wake.up()
