"""Look-ups over a real broker: replicas of some partitions each serve what others ask, whatever happens to them meanwhile."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from processes.child import Child
from reference.waiting import eventually

PARTITIONS = 4
KEYS = np.arange(-500, 500)


@pytest.fixture
def publisher(client: ps.Client) -> Iterator[ps.Publisher]:
    client.create_topic("model", partitions=PARTITIONS)
    client.create_table("model", "users", dim=8)
    with client.publisher("model", producer="trainer") as publisher:
        yield publisher


def rows_of(
    keys: np.ndarray[tuple[int], np.dtype[np.int64]], scale: float = 1.0
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return (np.outer(keys, np.arange(1, 9)) * scale).astype(np.float32)


def test_two_replicas_of_different_partitions_answer_one_look_up(
    client: ps.Client, publisher: ps.Publisher, broker: ps.Broker
) -> None:
    receipt = publisher.publish_rows("users", KEYS, rows_of(KEYS))
    with (
        client.replica("model", name="even", partitions=[0, 2], arrays="numpy") as even,
        client.replica("model", name="odd", partitions=[1, 3], arrays="numpy") as odd,
        even.serve() as at_even,
        odd.serve(),
        ps.connect(broker.endpoint) as reader,
    ):
        values, found, seen = reader.lookup(
            "model", "users", KEYS, receipt, return_found=True, return_vector=True, arrays="numpy"
        )
        assert np.array_equal(values, rows_of(KEYS)) and found.all()
        assert receipt.positions <= seen and {number for _, number in seen} == set(range(PARTITIONS))
        values, found = reader.lookup("model", "users", [7, 10**9], return_found=True, arrays="numpy")
        assert found.tolist() == [True, False] and not values[1].any()
        # Read your writes, through a text from another process, and through a vector.
        for number in range(20):
            text = str(publisher.publish_rows("users", KEYS[:50], rows_of(KEYS[:50], number)))
            at_least = ps.Receipt.parse(text) if number % 2 else ps.Receipt.parse(text).vector
            assert np.array_equal(
                reader.lookup("model", "users", KEYS[:50], at_least, arrays="numpy"), rows_of(KEYS[:50], number)
            )
        publisher.put_many({f"key-{number}": bytes([number]) for number in range(100)})
        at_least = publisher.put("last", b"x")
        assert reader.get("model", "last", at_least) == b"x" and reader.get("model", "none") is None
        at_least = publisher.delete("last")
        assert reader.get("model", "last", at_least) is None
        publisher.flush(10)
        assert reader.get_many("model", ["key-7", "none", "key-3"], publisher.put("w", b"")) == [b"\7", None, b"\3"]
        serving = {status.name: status.serves for status in reader.replicas("model")}
        assert serving["even"] == at_even.endpoint == even.status().serves
        with pytest.raises(ps.InvalidEvent, match="serves at"):
            even.serve()
        with pytest.raises(ps.UnknownTopic):
            reader.lookup("model", "nothing", [1])
        with pytest.raises(ps.UnknownTopic):
            reader.get("nothing", "key")
        at_even.close()
        assert eventually(lambda: {s.name: s.serves for s in reader.replicas("model")}["even"] == "")
        with pytest.raises(ps.ParamstreamTimeout, match="no replica serves the state partition"):
            reader.lookup("model", "users", KEYS, timeout=0.5)


def test_what_was_lost_is_told_to_whoever_must_have_seen_it(tmp_path: Path) -> None:
    """Under persistence "none" all of an epoch is lost with its broker."""
    address, log = f"ipc://{tmp_path}/b", f"file:{tmp_path}/log"
    with ExitStack() as stack:
        broker = stack.enter_context(ps.Broker(bind=address, log=log))
        client = stack.enter_context(ps.connect(address))
        client.create_topic("kv", persistence="none")
        stack.enter_context(client.replica("kv").serve())
        receipt = ps.Receipt.parse(str(client.publisher("kv", producer="p").put("k", b"v")))
        assert client.get("kv", "k", receipt) == b"v"
        broker.close()
        # Those that are known answer while there is no broker.
        assert client.get("kv", "k", receipt) == b"v"
        stack.enter_context(ps.Broker(bind=address, log=log))
        # Until the replica has heard of it.
        eventually(lambda: client.get("kv", "k") is None)
        with pytest.raises(ps.EventLost):
            client.get("kv", "k", receipt)


def test_replicas_that_stand_still_or_die_are_left_for_others_and_found_where_they_come_back(
    client: ps.Client, publisher: ps.Publisher, broker: ps.Broker, tmp_path: Path
) -> None:
    receipt = publisher.publish_rows("users", KEYS, rows_of(KEYS))

    def check() -> float:
        began = time.monotonic()
        values = client.lookup("model", "users", KEYS, receipt, arrays="numpy", timeout=20)
        assert np.array_equal(values, rows_of(KEYS))
        return time.monotonic() - began

    with (
        Child("serving_replica", broker.endpoint, "model", "child", errors=tmp_path / "child.txt") as child,
        client.replica("model", name="here", arrays="numpy") as here,
    ):
        at_child = child.read(60)["serves"]
        check()
        with here.serve() as serving:
            eventually(lambda: {s.serves for s in client.replicas("model")} == {at_child, serving.endpoint})
            time_of_four = sum(check() for _ in range(4))
            child.pause()
            assert sum(check() for _ in range(6)) < time_of_four + 3
            child.resume()
            eventually(lambda: check() < 0.5)
            with ThreadPoolExecutor(4) as pool:
                looks = [pool.submit(check) for _ in range(400)]
                child.kill()
                assert all(look.result(30) < 10 for look in looks)
        began = time.monotonic()
        with pytest.raises(ps.ParamstreamTimeout, match="is gone"):
            client.lookup("model", "users", KEYS, timeout=0.5)
        assert time.monotonic() - began < 1.5
        with here.serve():
            check()


def test_a_client_of_before_a_fork_looks_nothing_up(client: ps.Client, publisher: ps.Publisher) -> None:
    receipt = publisher.put("k", b"v")
    with client.replica("model") as replica, replica.serve():
        assert client.get("model", "k", receipt) == b"v"
        context = multiprocessing.get_context("fork")
        said: multiprocessing.SimpleQueue[str] = context.SimpleQueue()

        def look() -> None:
            try:
                client.get("model", "k", timeout=5.0)
            except ps.ParamstreamError as error:
                said.put(str(error))

        forked = context.Process(target=look)
        forked.start()
        forked.join(20)
        assert forked.exitcode == 0 and "before a fork" in said.get()
        assert client.get("model", "k") == b"v"


def test_copies_of_rows_are_never_older_than_what_must_have_been_seen_and_save_most_of_the_asking(
    client: ps.Client, publisher: ps.Publisher, broker: ps.Broker
) -> None:
    keys = np.arange(200)
    publisher.publish_rows("users", keys, rows_of(keys, 0.0)).accepted.result(10)
    with (
        client.replica("model", arrays="numpy") as replica,
        replica.serve() as serving,
        ps.connect(broker.endpoint, hot_rows="1MiB") as reader,
    ):
        some = np.random.default_rng(3)
        newest = np.zeros(len(keys))
        for number in range(1, 21):
            chosen = some.choice(keys, 10, replace=False)
            receipt = publisher.publish_rows("users", chosen, rows_of(chosen, number))
            newest[chosen] = number
            for _ in range(3):
                found = reader.lookup("model", "users", keys, receipt, arrays="numpy")
                assert np.array_equal(found, (rows_of(keys, 1.0) * newest[:, None]).astype(np.float32))

        def asks_nobody() -> bool:
            before = serving.counters().questions
            reader.lookup("model", "users", keys)
            return serving.counters().questions == before

        assert eventually(asks_nobody)
        hot = reader.hot_rows
        assert hot.rows == len(keys) and hot.hits > hot.misses > 0 and hot.dropped > 100
    with pytest.raises(ps.InvalidEvent, match="hot_rows"):
        ps.connect(broker.endpoint, hot_rows=1000)


def test_a_name_that_stands_for_another_topic_by_now_is_looked_up_there(client: ps.Client, broker: ps.Broker) -> None:
    client.create_topic("kv")
    with client.replica("kv") as replica, replica.serve(), ps.connect(broker.endpoint) as reader:
        assert reader.get("kv", "k", client.publisher("kv", producer="p").put("k", b"old")) == b"old"
        client.delete_topic("kv")
        client.create_topic("kv")
        receipt = client.publisher("kv", producer="p").put("k", b"new")
        assert reader.get("kv", "k", str_of(receipt), timeout=20) == b"new"


def str_of(receipt: ps.Receipt) -> ps.Receipt:
    """As another process has it."""
    return ps.Receipt.parse(str(receipt))


def test_a_look_up_that_passes_the_receipt_of_a_write_never_sees_an_older_value_H08(
    client: ps.Client, broker: ps.Broker
) -> None:
    """By turns through a replica that is kept 20 ms behind, and one that is not."""
    client.create_topic("model")
    late = 0
    with (
        client.publisher("model", producer="trainer") as publisher,
        client.replica("model", name="slow") as slow,
        client.replica("model", name="quick") as quick,
        slow.serve(),
        quick.serve(),
        ps.connect(broker.endpoint) as reader,
    ):
        slow.on_switch(lambda info: time.sleep(0.02))
        for number in range(60):
            # The version before the put takes the slow one's thread for 20 ms.
            publisher.publish_weights({"w": np.full(4, number, np.float32)}, version=number)
            receipt = publisher.put("k", str(number).encode())
            late += slow.get("k") != str(number).encode()
            value = reader.get("model", "k", at_least=receipt)
            assert value is not None and int(value) >= number
    assert late > 0, "the slow one did lag"
