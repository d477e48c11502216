"""Fault case N03: a process that is forked from one with open handles is told so at once, and can open its own."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable

import pytest

import paramstream as ps

CHILD_S = 10.0
DONE = 0


def in_child(body: Callable[[], None]) -> int:
    """Run `body` in a forked child; returns its exit code, `DONE` where it raised nothing. Fails where it hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = DONE
        except (AssertionError, ps.ParamstreamError):
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + CHILD_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hung")


def check_says_fork(call: Callable[[], object]) -> None:
    try:
        call()
    except ps.ParamstreamError as error:
        assert "before a fork" in str(error), error
    else:
        raise AssertionError("it works in the child")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_that_its_handles_are_the_parents_and_opens_its_own_N03(
    broker: ps.Broker, client: ps.Client
) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="parent")
    publisher.put("k", b"before").durable.result(10)

    def use_the_parents() -> None:
        for call in (
            lambda: publisher.put("k", b"from the child"),
            lambda: client.create_topic("other", timeout=5),
            lambda: client.subscribe("model", timeout=5),
            lambda: client.replica("model", timeout=5),
        ):
            check_says_fork(call)

    def use_its_own() -> None:
        with ps.connect(broker.endpoint) as own, own.subscribe("model", start="earliest") as events:
            own.publisher("model", producer="child").put("child", b"value").durable.result(5)
            assert events.next(5).items == ((b"k", b"before", None),)
            assert events.next(5).producer == "child"

    with client.replica("model") as replica:
        for body in (use_the_parents, use_its_own):
            assert in_child(body) == DONE
        # The parent is unhurt.
        replica.wait(publisher.put("k", b"after"), 10)
        assert replica.get_many(["k", "child"]) == [b"after", b"value"]
        publisher.flush(10)
