"""Fault case H10: what could not be sent, or was lost on the way, goes before what was called after it."""

from __future__ import annotations

from typing import Any

import pytest

import paramstream as ps
from paramstream.events.codec import MAGIC, decode_event
from paramstream.events.kinds import Put
from paramstream.transport.link import Link
from paramstream.transport.wire import Message
from wire.cable import Cable

NUMBERS = range(10, 21)


def carries(frame: Any, key: bytes) -> bool:
    """The frame is an event that puts `key`."""
    if isinstance(frame, Message) or bytes(frame[:2]) != MAGIC:
        return False
    payload = decode_event(bytearray(frame)).payload
    return isinstance(payload, Put) and any(item.key == key for item in payload.items)


def put_all(publisher: ps.Publisher) -> list[ps.Receipt]:
    """Every number under a key of its own and under `k`, in one event."""
    receipts = [publisher.put_many({f"n{number}": b"", "k": str(number).encode()}) for number in NUMBERS]
    for receipt in receipts:
        receipt.durable.result(20)
    return receipts


def numbers_in_log(client: ps.Client) -> list[int]:
    """As the log has them, from its beginning."""
    with client.subscribe("model", start="earliest") as events:
        return [int(key[1:]) for _ in NUMBERS for key, _, _ in events.next(20).items if key != b"k"]


def check_order(client: ps.Client, receipts: list[ps.Receipt]) -> None:
    assert {receipt.outcome for receipt in receipts} == {"durable"}
    positions = [receipt.positions["model", 0] for receipt in receipts]
    assert positions == sorted(set(positions))
    assert numbers_in_log(client) == list(NUMBERS)
    with client.replica("model", start="earliest") as replayed:
        assert replayed.get("k") == b"20"


@pytest.mark.parametrize("fault", ["not taken", "lost with its connection"])
def test_an_event_whose_first_send_fails_stands_before_those_called_after_it_H10(
    broker: ps.Broker, client: ps.Client, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    client.create_topic("model")
    send, failed = Link.send, list[str]()
    with Cable(broker.endpoint) as cable, ps.connect(cable.endpoint) as far:
        publisher = far.publisher("model", producer="trainer")

        def fail_once(link: Link, frame: Any) -> bool:
            if failed or not carries(frame, b"n10"):
                return send(link, frame)
            failed.append(fault)
            if fault == "not taken":
                return False
            # It is taken, and goes nowhere: later ones are sent behind it before the loss is noticed.
            cable.cut()
            cable.mend()
            return True

        monkeypatch.setattr(Link, "send", fail_once)
        check_order(client, put_all(publisher))
        assert failed == [fault]
