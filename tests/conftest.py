"""What holds for every test: how property tests search, and that a test ends the threads it starts."""

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import settings

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
