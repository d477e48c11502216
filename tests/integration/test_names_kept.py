"""A broker remembers the names that somebody may come back under, and no others."""

from __future__ import annotations

import time

import pytest

import paramstream as ps
from paramstream.brokers import calls, reports
from paramstream.brokers.owned import META
from reference.waiting import eventually


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


def test_a_replica_name_that_nobody_reports_under_is_forgotten_and_can_be_had_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "REMEMBER_S", 0.0)
    monkeypatch.setattr(reports, "REMEMBER_S", 0.0)
    with ps.Broker() as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("t")
        meta = broker._partitions.owned[META].core  # pyright: ignore[reportPrivateUsage]
        with client.replica("t", name="stays") as stays:
            client.replica("t", name="gone").close()
            eventually(lambda: not meta.meta.replica_incarnation("gone"), 20)
            first = meta.meta.replica_incarnation("stays")
            assert first > 0
            # Whoever takes the name of one that lives fences it as ever; a name that was forgotten is a new one.
            with client.replica("t", name="gone"), client.replica("t", name="stays"):
                assert meta.meta.replica_incarnation("gone") > first
                with pytest.raises(ps.Fenced, match="stays"):
                    stays.wait_version(1, timeout=10)
