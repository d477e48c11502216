"""What a client had sent over a connection that it has left since."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import paramstream as ps
from fakes.raw_client import RawClient
from paramstream.transport.calls import OpenProducer
from paramstream.transport.messages import FORMAT, Hello, Request, Response

WAIT_S = 10.0


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ps.Broker() as broker:
        yield broker.endpoint


def test_a_call_that_comes_late_over_a_connection_that_its_client_has_left_is_not_done(endpoint: str) -> None:
    """It was asked again over the next one; done twice, the second time would fence the session that the first one opened."""
    with RawClient(endpoint, Hello(FORMAT, link=b"one", turn=1)) as old:
        assert old.welcome(WAIT_S) is not None
        with RawClient(endpoint, Hello(FORMAT, link=b"one", turn=2)) as new:
            assert new.welcome(WAIT_S) is not None
            first = new.ask(OpenProducer("trainer"), int, WAIT_S)
            old.send(Request(1, OpenProducer("trainer")))
            assert old.take(Response, 0.3) is None
            assert new.ask(OpenProducer("another"), int, WAIT_S) == first + 1


def test_connections_of_other_links_stay(endpoint: str) -> None:
    with RawClient(endpoint, Hello(FORMAT, link=b"one", turn=1)) as one, RawClient(endpoint) as plain:
        assert one.welcome(WAIT_S) is not None and plain.welcome(WAIT_S) is not None
        with RawClient(endpoint, Hello(FORMAT, link=b"two", turn=2)) as two, RawClient(endpoint) as other:
            assert two.welcome(WAIT_S) is not None and other.welcome(WAIT_S) is not None
            for client in (one, plain, two, other):
                assert client.ask(OpenProducer("trainer"), int, WAIT_S)
