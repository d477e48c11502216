"""Fault cases N, end to end: buffers are the caller's again when a call returns; what readers hold is theirs alone."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramstream as ps
from reference.weights import check_weights, logical_bytes, of_numpy, of_torch

ROUNDS = 20


def large(value: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """More than one chunk, so that some of it goes to the wire without a copy by libzmq."""
    return np.full(300_000, value, np.float32)


@pytest.mark.parametrize("make", [of_numpy, of_torch])
def test_a_buffer_that_is_used_again_at_once_has_been_published_as_it_was_N08(client: ps.Client, make: Any) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    array, buffer = make(large(0)), bytearray(4)
    with client.replica("model", arrays="numpy", keep_versions=ROUNDS) as replica:
        for version in range(1, ROUNDS + 1):
            array[:] = version
            buffer[:] = version.to_bytes(4, "little")
            publisher.publish_weights({"w": array}, version=version)
            array[:] = -1
            publisher.put(f"key-{version}", buffer)
            buffer[:] = b"\xff" * 4
        del array
        gc.collect()
        publisher.flush()
        replica.wait(publisher.put("last", b""))
        replica.wait_version(ROUNDS)
        for version in range(1, ROUNDS + 1):
            check_weights(replica.weights(version=version), {"w": large(version)}, version)
            assert replica.get(f"key-{version}") == version.to_bytes(4, "little")


def test_what_waits_for_a_connection_is_the_value_at_the_time_of_the_call_N08(tmp_path: Path) -> None:
    log = f"file:{tmp_path}"
    broker = ps.Broker(log=log)
    try:
        with ps.connect(broker.endpoint) as client:
            client.create_topic("model", partitions=2)
            publisher = client.publisher("model", producer="trainer")
            publisher.put("first", b"1").durable.result()
            array, buffer = large(1), bytearray(b"1234")
            broker.close()
            weights = publisher.publish_weights({"w": array}, version=1)
            puts = [publisher.put(f"key-{number}", buffer) for number in range(50)]
            array[:] = -1
            buffer[:] = b"----"
            del array
            gc.collect()
            broker = ps.Broker(bind=broker.endpoint, log=log)
            publisher.flush()
            assert {receipt.outcome for receipt in (weights, *puts)} == {"durable"}
            with client.replica("model", arrays="numpy") as replica:
                check_weights(replica.weights(), {"w": large(1)}, 1)
                assert replica.get_many(f"key-{number}" for number in range(50)) == [b"1234"] * 50
    finally:
        broker.close()


def test_a_reader_cannot_change_what_another_one_sees_N10(client: ps.Client) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    arrays = {"p": large(7), "tied": large(7)}
    publisher.publish_weights(arrays, version=1).accepted.result()
    with client.replica("model", arrays="numpy") as replica:
        one, two = replica.weights(), replica.weights()
        with pytest.raises(ValueError, match="read-only"):
            one["p"][0] = 1.0
        with pytest.raises(ValueError, match="WRITEABLE"):
            one["p"].flags.writeable = True
        check_weights(two, arrays, 1)


def test_records_that_are_handed_out_are_frozen(client: ps.Client) -> None:
    topic = client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    with client.replica("model", arrays="numpy") as replica:
        replica.wait(publisher.publish_weights({"w": np.ones(2)}, version=1))
        records: list[tuple[object, str]] = [
            (replica.weights(), "version"), (replica.weights(), "digest"), (replica.weights(), "topic"), (replica.weights(), "new"),
            (topic, "name"), (client.versions("model")[0], "position"), (replica.status(), "name"), (replica.status().served["model"], "version"),
        ]  # fmt: skip
        for record, name in records:
            with pytest.raises(AttributeError):
                setattr(record, name, 2)


def test_what_a_reader_writes_into_its_torch_tensors_stays_its_own_N10(client: ps.Client) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    arrays = {"p": large(7)}
    publisher.publish_weights(arrays, version=1).accepted.result()
    with client.replica("model", arrays="torch") as replica:
        one, two, digest = replica.weights(), replica.weights(), replica.digest()
        one["p"].fill_(1.0)
        check_weights(two, {"p": torch.from_numpy(large(7))}, 1)
        check_weights(replica.weights(), {"p": torch.from_numpy(large(7))}, 1)
        assert replica.digest() == digest
        assert logical_bytes(one["p"]) == large(1).tobytes(), "it sees what it wrote"


def test_what_a_reader_holds_stays_while_versions_go_by_N10(client: ps.Client) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    with client.replica("model", arrays="numpy", keep_versions=1) as replica:
        publisher.publish_weights({"p": large(1)}, version=1).accepted.result()
        replica.wait_version(1)
        held, array = replica.weights(), replica.weights()["p"]
        for version in range(2, 12):
            publisher.publish_weights({"p": large(version)}, version=version).accepted.result()
        replica.wait_version(11)
        check_weights(held, {"p": large(1)}, 1)
    # The replica is closed: the memory lives as long as an array of it does.
    assert array.tobytes() == large(1).tobytes()


def test_an_event_of_a_subscription_cannot_be_written_N10(client: ps.Client) -> None:
    client.create_topic("model")
    client.create_table("model", "t", dim=2)
    publisher = client.publisher("model", producer="trainer")
    with client.subscribe("model") as one, client.subscribe("model") as two:
        publisher.publish_rows("t", [1], np.ones((1, 2), np.float32)).accepted.result()
        first, second = one.next(timeout=5.0), two.next(timeout=5.0)
        assert first.rows is not None and second.rows is not None and first.keys is not None
        for array in (first.rows, first.keys):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 9
        assert second.rows.tolist() == [[1, 1]]
