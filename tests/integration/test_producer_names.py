"""A broker remembers the names that somebody may come back under, and no others."""

from __future__ import annotations

import time

import pytest

import paramstream as ps
from paramstream.brokers import calls
from paramstream.brokers.partitions import META


def names(broker: ps.Broker) -> set[str]:
    meta = broker._partitions.owned[META].core.meta  # pyright: ignore[reportPrivateUsage]
    return {name for name in ("idle", "writer") if meta.producer_incarnation(name)}


def test_a_producer_name_that_no_partition_knows_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "REMEMBER_S", 0.0)
    with ps.Broker() as broker:
        with ps.connect(broker.endpoint) as client:
            client.create_topic("t")
            client.publisher("t", producer="idle")
            client.publisher("t", producer="writer").put("k", b"v").accepted.result(5)
            assert names(broker) == {"idle", "writer"}
            client.delete_topic("t")
            client.create_topic("t")
            client.publisher("t", producer="writer").put("k", b"v").accepted.result(5)
        deadline = time.monotonic() + 20
        while "idle" in names(broker):
            assert time.monotonic() < deadline, "the idle name was never forgotten"
            time.sleep(0.05)
        assert names(broker) == {"writer"}
