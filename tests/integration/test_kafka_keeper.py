"""A keeper over Kafka: state goes to changelogs, the log is trimmed behind them, and a restore begins with them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from reference.waiting import eventually

WAIT_S = 30.0
LIMIT = 8 << 20
VALUE = bytes(range(250)) * 16
KEYS = 100


def put_all(pub: ps.Publisher, model: dict[str, bytes], nbytes: int) -> None:
    """That much of KV, more than the log holds; what is refused for want of room is put again a little later."""
    deadline = time.monotonic() + WAIT_S
    done = 0
    while done < nbytes:
        items = {f"k{(done // len(VALUE) + n) % KEYS}": VALUE + str(done + n).encode() for n in range(50)}
        try:
            pub.put_many(items).accepted.result(WAIT_S)
        except ps.StorageFull:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            continue
        model.update(items)
        done += sum(map(len, items.values()))


def test_a_restore_begins_with_the_changelogs_of_what_has_left_the_log(kafka: ps.KafkaLog, tmp_path: Path) -> None:
    model: dict[str, bytes] = {}
    with (
        ps.Broker(bind=f"ipc://{tmp_path}/broker", log=kafka, keeper=tmp_path / "keeper", log_limit=LIMIT) as broker,
        ps.connect(broker.endpoint, timeout=WAIT_S) as client,
    ):
        client.create_topic("kv", partitions=2)
        pub = client.publisher("kv", producer="p")
        pub.put("gone", b"1")
        pub.put("stays", b"2")
        pub.delete("gone")
        model["stays"] = b"2"
        put_all(pub, model, 2 * LIMIT)
        pub.put("last", b"4").durable.result(WAIT_S)
        model["last"] = b"4"
        assert broker.status().keeper == ""
        with client.replica("kv") as late, ps.restore(kafka, "kv") as restored:
            assert late.get_many(model) == restored.get_many(model) == list(model.values())
            assert late.digest() == restored.digest()
            assert restored.get("gone") is None
        with pytest.raises(ps.LogTruncated, match="left the log"):
            client.replica("kv", start="earliest")
    # Without any broker, too; and a broker that comes back goes on.
    with ps.restore(kafka, "kv") as restored:
        assert restored.get_many(model) == list(model.values())
    with (
        ps.Broker(bind=f"ipc://{tmp_path}/broker", log=kafka, keeper=tmp_path / "keeper", log_limit=LIMIT) as broker,
        ps.connect(broker.endpoint, timeout=WAIT_S) as client,
        client.replica("kv") as replica,
    ):
        assert replica.get_many(model) == list(model.values())
        pub = client.publisher("kv", producer="p")
        replica.wait(pub.put("after", b"3"), WAIT_S)
        pub.flush()

        def restores() -> bool:
            with ps.restore(kafka, "kv") as again:
                return again.get("after") == b"3" and again.digest() == replica.digest()

        eventually(restores, WAIT_S)


def test_a_keeper_on_another_host_begins_with_the_changelogs_of_the_one_that_is_gone(
    kafka: ps.KafkaLog, tmp_path: Path
) -> None:
    model: dict[str, bytes] = {}
    for host in ("one", "other"):
        with (
            ps.Broker(
                bind=f"ipc://{tmp_path}/{host}", log=kafka, keeper=tmp_path / f"{host}-keeper", log_limit=LIMIT
            ) as broker,
            ps.connect(broker.endpoint, timeout=WAIT_S) as client,
        ):
            if not model:
                client.create_topic("kv", partitions=2)
                client.create_table("kv", "users", dim=4, optimizer=ps.Adagrad(0.5))
            pub = client.publisher("kv", producer="p")
            if model:
                # All rows are written to the changelogs anew, with state of the other kind.
                client.alter_table("kv", "users", ps.Adam(0.5))
            pub.publish_gradients("users", range(100), np.ones((100, 4), np.float32))
            pub.publish_gradients("users", range(50), np.ones((50, 4), np.float32))
            pub.delete_rows("users", range(40, 60))
            # More than the log holds: the other broker has room only once its own keeper has all that left the log before.
            put_all(pub, model, 2 * LIMIT)
            pub.put(host, b"last").durable.result(WAIT_S)
            model[host] = b"last"
            with (
                client.replica("kv", arrays="numpy") as late,
                ps.restore(kafka, "kv", arrays="numpy") as restored,
            ):
                assert late.get_many(model) == restored.get_many(model) == list(model.values())
                assert late.digest() == restored.digest()
                rows, found = late.lookup("users", range(100), return_found=True)
                assert (rows == restored.lookup("users", range(100))).all() and found.sum() == 80
                assert late.table("users").rows == restored.table("users").rows == 80


def test_a_replica_gets_state_from_any_brokers_keeper_whoever_owns_the_partition(
    kafka: ps.KafkaLog, tmp_path: Path
) -> None:
    model: dict[str, bytes] = {}
    with (
        ps.Broker(bind=f"ipc://{tmp_path}/one", log=kafka, keeper=tmp_path / "keeper", log_limit=LIMIT) as one,
        ps.connect(one.endpoint, timeout=WAIT_S) as client,
    ):
        client.create_topic("kv", partitions=8)
        pub = client.publisher("kv", producer="p")
        put_all(pub, model, 2 * LIMIT)
        with ps.Broker(bind=f"ipc://{tmp_path}/other", log=kafka, log_limit=LIMIT) as other:
            eventually(lambda: min(one.status().partitions, other.status().partitions) > 0, WAIT_S)
            pub.put("last", b"4", timeout=WAIT_S).durable.result(WAIT_S)
            model["last"] = b"4"
            with client.replica("kv", timeout=WAIT_S) as late:
                assert late.get_many(model) == list(model.values())
