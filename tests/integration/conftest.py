"""A broker in this process and a client of it, closed whatever the test does; and what the command line says of kills."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import paramstream as ps
from realkafka import cluster


@pytest.fixture
def broker() -> Iterator[ps.Broker]:
    with ps.Broker(bind="tcp://127.0.0.1:0", log="memory:") as running:
        yield running


@pytest.fixture
def client(broker: ps.Broker) -> Iterator[ps.Client]:
    with ps.connect(broker.endpoint) as connected:
        yield connected


@pytest.fixture(scope="session")
def mortal_kafka() -> Iterator[cluster.Cluster]:
    """One Kafka for all tests that freeze or kill it; each leaves it running."""
    with cluster.start() as running:
        yield running


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Chooses victims and moments."""
    given: int = request.config.option.seed
    return given


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int | None:
    """How many kills are asked for, None where it is left to the test."""
    given: int | None = request.config.option.rounds
    return given
