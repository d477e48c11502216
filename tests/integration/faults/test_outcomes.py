"""Every event that was accepted has its one outcome, however its session ended."""

from __future__ import annotations

from pathlib import Path

import paramstream as ps


def test_what_a_closed_publisher_has_accepted_becomes_durable_also_behind_a_new_session_of_its_name(
    tmp_path: Path,
) -> None:
    with ps.Broker(log=f"file:{tmp_path}") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        receipts: list[ps.Receipt] = []
        for number in range(10):
            with client.publisher("model", producer="trainer") as publisher:
                receipts.append(publisher.put(f"key-{number}", b"value"))
        for receipt in receipts:
            receipt.durable.result(10.0)
        assert {receipt.outcome for receipt in receipts} == {"durable"}


def test_what_a_closed_publisher_has_accepted_is_settled_by_the_next_start_of_the_broker(tmp_path: Path) -> None:
    log = f"file:{tmp_path}"
    broker = ps.Broker(log=log)
    try:
        with ps.connect(broker.endpoint) as client:
            client.create_topic("model")
            with client.publisher("model", producer="trainer") as publisher:
                receipt = publisher.put("key", b"value")
            broker.close()
            broker = ps.Broker(bind=broker.endpoint, log=log)
            receipt.durable.result(10.0)
    finally:
        broker.close()
