"""Fault case J02: what a broker's users put of any size is stored in Kafka, or refused before a byte of it leaves."""

from __future__ import annotations

import pytest

import paramstream as ps
from paramstream.events.limits import MAX_VALUE_BYTES
from realkafka.stranger import Stranger

WAIT_S = 30.0
TOO_LARGE_BYTES = 1536 * 1024


def test_large_values_sent_together_are_stored_and_one_over_the_limit_is_refused_by_name_and_size_J02(
    kafka: ps.KafkaLog,
) -> None:
    values = {f"large-{number}": bytes([number]) * MAX_VALUE_BYTES for number in range(3)}
    with ps.Broker(log=kafka) as broker, ps.connect(broker.endpoint, timeout=WAIT_S) as client:
        client.create_topic("model", timeout=WAIT_S)
        name = client.storage("model")["name"]
        Stranger(kafka).set(name, max_message_bytes=str(1 << 20), retention_ms="-1")
        publisher = client.publisher("model", producer="trainer")
        receipts = [publisher.put(key, value) for key, value in values.items()]
        says = f"{TOO_LARGE_BYTES} bytes is over the limit of {MAX_VALUE_BYTES}"
        with pytest.raises(ps.InvalidEvent, match=says) as refused:
            publisher.put("too-large", bytes(TOO_LARGE_BYTES))
        assert refused.value.item == "b'too-large'"
        receipts.append(publisher.put("small", bytes(1024)))
        publisher.flush(WAIT_S)
        assert {receipt.outcome for receipt in receipts} == {"durable"}
    with ps.restore(kafka, "model") as restored:
        assert restored.get_many([*values, "too-large", "small"]) == [*values.values(), None, bytes(1024)]
