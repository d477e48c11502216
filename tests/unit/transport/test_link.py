"""A link says within its time what it found at the endpoint, notices a loss, and connects again as somebody new."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from fakes.bare_broker import BareBroker
from fakes.link_recorder import Recorder
from paramstream.errors import ConnectFailed, OutcomeUnknown, ParamstreamError, ParamstreamTimeout, UnknownTopic
from paramstream.transport.calls import DeleteTopic, ListTopics, TopicRecord
from paramstream.transport.link import Link
from paramstream.transport.messages import (
    FORMAT,
    AnyMessage,
    Fetch,
    Goodbye,
    Heartbeat,
    Hello,
    Request,
    Response,
    Welcome,
    encode_result,
)
from paramstream.transport.wire import Message, WireError
from reference.waiting import eventually


def hello() -> Hello:
    return Hello(FORMAT)


def echo_topics(message: AnyMessage) -> list[Message | bytes]:
    if isinstance(message, Request) and isinstance(message.call, ListTopics):
        return [Heartbeat(()), Response(message.id, encode_result([TopicRecord("t", 5, 1, "none", 8)]))]
    if isinstance(message, Request) and isinstance(message.call, DeleteTopic):
        error = UnknownTopic("no such topic", topic=message.call.name)
        return [b"PCgarbled", b"PSgarbled", Response(message.id, encode_result(None), WireError.of(error))]
    return []


@pytest.mark.parametrize(
    "endpoint", ["tcp://broker.invalid:7777", "tcp://127.0.0.1:1", "ipc:///nowhere/at/all.sock", "not an address"]
)
def test_a_wrong_endpoint_is_named_within_the_time_limit_G01(endpoint: str) -> None:
    started = time.monotonic()
    with pytest.raises(ConnectFailed) as caught:
        Link([endpoint], Recorder(), hello).start(timeout=1.0)
    assert endpoint in str(caught.value)
    assert time.monotonic() - started < 3.0


def test_a_listener_that_does_not_greet_is_no_broker() -> None:
    with (
        BareBroker(greets=False) as silent,
        pytest.raises(ConnectFailed, match=r"did not answer a hello|no broker answered"),
    ):
        Link([silent.endpoint], Recorder(), hello).start(timeout=1.5)


def test_the_second_endpoint_is_taken_where_the_first_is_dead() -> None:
    with BareBroker() as broker:
        link = Link(["tcp://127.0.0.1:1", broker.endpoint], Recorder(), hello)
        assert link.start(timeout=5.0).broker == "bare"
        link.close(1.0)


def test_a_request_gets_its_answer_or_the_brokers_own_error() -> None:
    with BareBroker(echo_topics) as broker:
        recorder = Recorder()
        link = Link([broker.endpoint], recorder, hello)
        link.start(5.0)
        assert link.request(ListTopics(), list[TopicRecord], 5.0) == [TopicRecord("t", 5, 1, "none", 8)]
        with pytest.raises(UnknownTopic) as caught:
            link.request(DeleteTopic("w"), type(None), 5.0)
        assert caught.value.topic == "w"
        assert link.garbled_frames == 1, "the garbled control frame is counted and passed over"
        assert b"PSgarbled" in recorder.told, "what an event frame holds is the handler's to judge"
        link.close(1.0)


def test_a_request_without_an_answer_times_out_by_its_name() -> None:
    with BareBroker() as broker:
        link = Link([broker.endpoint], Recorder(), hello)
        link.start(5.0)
        with pytest.raises(ParamstreamTimeout, match="ListTopics"):
            link.request(ListTopics(), list[TopicRecord], 0.2)
        link.close(1.0)


def test_after_a_loss_the_link_connects_again_under_another_id() -> None:
    recorder = Recorder()
    with BareBroker() as broker:
        link = Link([broker.endpoint], recorder, hello)
        link.start(5.0)
        endpoint, first = broker.endpoint, broker.clients[0]
    recorder.wait_for(lambda told: "lost" in told)
    assert not link.send(b"PS into nothing"), "nothing is sent while there is no connection"
    with BareBroker(bind=endpoint) as again:
        recorder.wait_for(lambda told: told.count("connected") == 2, timeout=10.0)
        assert again.clients[0] != first
        link.close(1.0)


def test_a_request_whose_connection_goes_is_unknown() -> None:
    with BareBroker() as broker:
        link = Link([broker.endpoint], Recorder(), hello)
        link.start(5.0)
        outcome: list[ParamstreamError | None] = []
        link.request_async(ListTopics(), list[TopicRecord], lambda answer, error: outcome.append(error))
    deadline = time.monotonic() + 5
    while not outcome and time.monotonic() < deadline:
        time.sleep(0.01)
    assert isinstance(outcome[0], OutcomeUnknown)
    link.close(1.0)


def test_a_broker_that_says_nothing_is_taken_for_gone() -> None:
    recorder = Recorder()
    with BareBroker() as silent:  # its heartbeat is 0.1 s and never comes
        link = Link([silent.endpoint], recorder, hello)
        link.start(5.0)
        recorder.wait_for(lambda told: "lost" in told)
        link.close(1.0)


def test_closing_says_goodbye_and_ends_the_thread() -> None:
    goodbyes: list[AnyMessage] = []

    def note(message: AnyMessage) -> list[Message | bytes]:
        goodbyes.append(message)
        return []

    with BareBroker(note) as broker:
        link = Link([broker.endpoint], Recorder(), hello, name="goodbye")
        link.start(5.0)
        link.close(5.0)
        link.close(5.0)
        deadline = time.monotonic() + 5
        while not goodbyes and time.monotonic() < deadline:
            time.sleep(0.01)
    assert goodbyes == [Goodbye()]
    assert not any(thread.name == "paramstream-goodbye" for thread in threading.enumerate())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_that_its_link_was_made_before_the_fork_N03() -> None:
    with BareBroker() as broker:
        broker.beats = True
        link = Link([broker.endpoint], Recorder(), hello)
        link.start(5.0)
        try:
            child = os.fork()
            if child == 0:
                try:
                    link.send(b"PS")
                except ParamstreamError as error:
                    os._exit(7 if "before a fork" in str(error) else 1)
                os._exit(2)
            code = wait_for_child(child)
            assert code == 7
            # On a busy machine its broker may have seemed silent meanwhile, and the link is made anew.
            eventually(lambda: link.send(b"PS from the parent"))
        finally:
            link.close(1.0)


def wait_for_child(child: int, timeout: float = 10.0) -> int:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hung")


def test_a_request_that_nobody_blocks_for_times_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paramstream.transport.link.ASYNC_S", 0.1)
    answered = threading.Event()
    outcome: list[ParamstreamError | None] = []

    def done(answer: object, error: ParamstreamError | None) -> None:
        outcome.append(error)
        answered.set()

    with BareBroker(lambda message: [Heartbeat(())]) as broker:
        link = Link([broker.endpoint], Recorder(), hello)
        link.start(5.0)
        link.request_async(ListTopics(), list[TopicRecord], done)
        assert answered.wait(5.0)
        link.close(1.0)
    assert isinstance(outcome[0], ParamstreamTimeout) and "ListTopics" in str(outcome[0])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_handler_that_fails_ends_the_link_and_says_why() -> None:
    class Failing(Recorder):
        def lost(self, error: ParamstreamError) -> None:
            self.note(str(error))

        def message(self, message: AnyMessage) -> None:
            raise RuntimeError("a fault of ours")

    recorder = Failing()
    with BareBroker(lambda message: [Heartbeat(())]) as broker:
        link = Link([broker.endpoint], recorder, hello)
        link.start(5.0)
        with pytest.raises(OutcomeUnknown, match="a fault of ours"):
            link.request(ListTopics(), list[TopicRecord], 5.0)
        recorder.wait_for(lambda told: any("a fault of ours" in str(what) for what in told))
        link.close(1.0)


def test_a_fetch_to_a_broker_that_has_just_gone_is_a_loss_and_blocks_nobody() -> None:
    class Fetching(Recorder):
        def message(self, message: AnyMessage) -> None:
            """In the link's thread, before it looks whether anybody has gone."""
            link.fetch(Fetch(1, 5, 0, 0, 9))
            until_gone()
            link.fetch(Fetch(2, 5, 0, 0, 9))
            self.note("fetched")

    def until_gone() -> None:
        deadline = time.monotonic() + 5
        while not fetches.messages and time.monotonic() < deadline:
            time.sleep(0.005)
        fetches.close()
        time.sleep(0.1)  # libzmq's own thread takes the connection down

    recorder = Fetching()
    with BareBroker(lambda message: [Heartbeat(())]) as broker, BareBroker() as fetches:
        broker.welcome = Welcome("bare", fetches.endpoint, 1, 5.0)
        link = Link([broker.endpoint], recorder, hello, name="fetching")
        link.start(5.0)
        link.request_async(ListTopics(), list[TopicRecord], lambda answer, error: None)
        recorder.wait_for(lambda told: "lost" in told)
        assert recorder.told[:3] == ["connected", "fetched", "lost"]
        link.close(5.0)
    assert not any(thread.name == "paramstream-fetching" for thread in threading.enumerate())
