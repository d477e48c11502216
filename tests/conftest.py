"""What holds for every test: how property tests search, that a test ends the threads it starts, and one Kafka for all."""

import threading
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
from hypothesis import settings

from paramstream.eventlog.kafka.settings import KafkaLog
from realkafka import cluster

# A deadline for each example would fail on a busy machine, not on a fault; the run's own limit ends what hangs.
settings.register_profile("paramstream", deadline=None, print_blob=True)
settings.load_profile("paramstream")

THREADS_END_WITHIN_SECONDS = 5.0
"""How long a closed handle's threads may still be on their way out when its test is over."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("paramstream")
    group.addoption("--rounds", type=int, help="how often the tests of kills kill something")
    group.addoption("--seed", type=int, default=7, help="chooses victims and moments in the tests of kills (default 7)")


@pytest.fixture(autouse=True)
def threads_end_with_their_test() -> Iterator[None]:
    """Fails a test that leaves a thread of paramstream running: a handle was not closed, or its close does not end it.

    Threads of paramstream are those whose name starts with ``paramstream``; threads of torch and the like are left alone.
    """
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + THREADS_END_WITHIN_SECONDS
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("paramstream"):
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"thread {thread.name!r} outlived its test"


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """One Kafka for the whole run, which no test pauses or kills: PARAMSTREAM_KAFKA, or one that is started here."""
    if cluster.named():
        yield cluster.named()
        return
    with cluster.start() as kafka:
        yield kafka.bootstrap


@pytest.fixture
def kafka(kafka_bootstrap: str) -> KafkaLog:
    """The settings of a log in that Kafka which nobody else uses."""
    return KafkaLog(kafka_bootstrap, topic_prefix=f"test-{uuid4().hex}.", request_timeout_s=5.0, session_timeout_s=3.0)
