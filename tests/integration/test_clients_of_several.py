"""Everything that a client asks of its broker it may ask of several: whoever owns what answers, and the answers are one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import numpy.typing as npt
import pytest

import paramstream as ps
from fakes.shared_log import SharedStore
from paramstream.consumers.pages import Pager
from paramstream.events.codec import decode_event, position_of
from paramstream.events.kinds import Put
from paramstream.transport.calls import CreateTable
from paramstream.transport.link import Handler, Link
from paramstream.transport.messages import Hello
from paramstream.transport.wire import To

WAIT_S = 20.0
PARTITIONS = 16
KEYS = [f"key-{number}" for number in range(256)]
"""In every partition some."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Of one of two brokers."""
    store = SharedStore()
    with ps.Broker(log=store.open("one")) as one, ps.Broker(log=store.open("two")) as two:
        yield one.endpoint
        partitions = [broker.status().partitions for broker in (one, two)]
        assert min(partitions) > 0, "each broker has its share"


@pytest.fixture
def client(endpoint: str) -> Iterator[ps.Client]:
    """Of both brokers, though it was told of one."""
    with ps.connect(endpoint, timeout=WAIT_S) as client:
        client.create_topic("model", partitions=PARTITIONS)
        yield client


def version(number: int) -> dict[str, npt.NDArray[np.float32]]:
    return {"w": np.full(1000, number, np.float32)}


def put_all(pub: ps.Publisher, value: bytes) -> ps.Receipt:
    for key in KEYS:
        pub.put(key, value)
    pub.flush(WAIT_S)
    return pub.put(KEYS[0], value)


def test_versions_and_replicas_are_known_whoever_owns_the_weights(client: ps.Client) -> None:
    pub = client.publisher("model", "trainer")
    with client.replica("model", name="serving", arrays="numpy", keep_versions=1) as rep:
        for number in (1, 2, 3):
            pub.publish_weights(version(number), version=number)
        client.wait_replicas("model", version=3, count=1, timeout=WAIT_S)
        assert [known.version for known in client.versions("model")] == [1, 2, 3]
        assert [status.name for status in client.replicas("model")] == ["serving"]
        rep.rollback(1, WAIT_S)
        assert (rep.weights()["w"] == 1).all(), "fetched again from the owner of the weights"


def test_a_commit_of_parts_is_prepared_by_the_owner_of_the_weights(client: ps.Client) -> None:
    ranks = [client.publisher("model", f"rank-{number}") for number in range(2)]
    parts = [
        rank.publish_weights({f"w{number}": np.ones(4, np.float32)}, version=1, seal=False)
        for number, rank in enumerate(ranks)
    ]
    ranks[0].commit(1, parts, timeout=WAIT_S)
    with client.replica("model", arrays="numpy") as rep:
        rep.wait_version(1, WAIT_S)
        assert sorted(rep.weights()) == ["w0", "w1"]


def test_a_table_is_there_in_every_partition(client: ps.Client) -> None:
    client.create_table("model", "rows", dim=4)
    pub = client.publisher("model", "trainer")
    keys = np.arange(256, dtype=np.int64)
    receipt = pub.publish_rows("rows", keys, np.ones((256, 4), np.float32))
    receipt.durable.result(WAIT_S)
    assert len(receipt.positions) == PARTITIONS
    with pytest.raises(ps.TopicExists):
        client.create_table("model", "rows", dim=4)
    client.create_table("model", "rows", dim=4, exist_ok=True)


def test_a_table_that_only_one_broker_has_heard_of_is_filled_in_by_the_same_call_again(
    client: ps.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as half:
        half.setattr(CreateTable, "to", To.META)
        client.create_table("model", "rows", dim=4)
    client.create_table("model", "rows", dim=4)
    pub = client.publisher("model", "trainer")
    keys = np.arange(256, dtype=np.int64)
    assert len(pub.publish_rows("rows", keys, np.ones((256, 4), np.float32)).accepted.result(WAIT_S)) == PARTITIONS
    with pytest.raises(ps.TopicExists):
        client.create_table("model", "rows", dim=4)


def test_a_receipt_of_another_process_is_durable_once_all_owners_say_so(client: ps.Client) -> None:
    pub = client.publisher("model", "trainer")
    written = pub.put_many(dict.fromkeys(KEYS, b"1"))
    assert len(written.accepted.result(WAIT_S)) >= PARTITIONS
    attached = client.attach(ps.Receipt.parse(str(written)))
    attached.durable.result(WAIT_S)


def test_raw_events_of_all_partitions_come_in_order(client: ps.Client) -> None:
    with client.subscribe("model", start="head") as events:
        pub = client.publisher("model", "trainer")
        for key in KEYS:
            pub.put(key, b"1")
        keys: list[str] = []
        while len(keys) < len(KEYS):
            keys += [key.decode() for key, _, _ in events.next(WAIT_S).items]
    assert keys == KEYS, "each put rests on the ones before it, whichever broker they went to"


def test_a_restore_needs_one_endpoint_only(client: ps.Client, endpoint: str) -> None:
    pub = client.publisher("model", "trainer")
    put_all(pub, b"before")
    pub.publish_weights(version(7), version=7)
    pub.flush(WAIT_S)
    with ps.restore(endpoint, "model", arrays="numpy") as restored:
        assert restored.weights().version == 7
        assert {restored.get(key) for key in KEYS} == {b"before"}


def test_a_look_shows_the_partitions_of_all_brokers_and_each_replica_once(client: ps.Client) -> None:
    pub = client.publisher("model", "trainer")
    with client.replica("model", name="serving"):
        put_all(pub, b"1")
        deadline = time.monotonic() + WAIT_S
        while not (seen := client.describe_broker()).replicas or seen.replicas[0].lag_events:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert [load.partition for load in seen.partitions] == list(range(PARTITIONS + 1))
    assert [(each.name, len(each.last)) for each in seen.producers] == [("trainer", PARTITIONS)]
    assert [replica.name for replica in seen.replicas] == ["serving"]
    assert len(seen.followers) == PARTITIONS + 1


def test_the_older_of_two_replicas_of_one_name_is_fenced_by_every_broker(client: ps.Client) -> None:
    with client.replica("model", name="serving") as older, client.replica("model", name="serving") as newer:
        receipt = put_all(client.publisher("model", "trainer"), b"1")
        newer.wait(receipt, WAIT_S)
        with pytest.raises(ps.Fenced):
            older.wait(receipt, WAIT_S)


def test_the_older_of_two_sessions_of_one_producer_is_fenced_by_every_broker(client: ps.Client, endpoint: str) -> None:
    older = client.publisher("model", "trainer")
    older.put_many(dict.fromkeys(KEYS, b"1")).accepted.result(WAIT_S)
    with ps.connect(endpoint, timeout=WAIT_S) as other:
        newer = other.publisher("model", "trainer")
        for key in KEYS:
            newer.put(key, b"2").accepted.result(WAIT_S)
        with pytest.raises(ps.Fenced):
            older.put(KEYS[0], b"3").accepted.result(WAIT_S)


def test_a_deleted_topic_is_gone_on_every_broker_and_its_name_may_be_used_again(client: ps.Client) -> None:
    pub = client.publisher("model", "trainer")
    put_all(pub, b"old")
    client.delete_topic("model")
    client.create_topic("model", partitions=PARTITIONS)
    again = client.publisher("model", "other")
    with client.replica("model") as rep:
        rep.wait(put_all(again, b"new"), WAIT_S)
        assert {rep.get(key) for key in KEYS} == {b"new"}


def test_a_client_whose_only_named_broker_has_gone_still_makes_replicas() -> None:
    store = SharedStore()
    with (
        ps.Broker(log=store.open("goes")) as goes,
        ps.Broker(log=store.open("stays")),
        ps.connect(goes.endpoint, timeout=WAIT_S) as client,
    ):
        client.create_topic("model", partitions=PARTITIONS)
        goes.close()
        receipt = put_all(client.publisher("model", "trainer", timeout=WAIT_S), b"1")
        with client.replica("model", timeout=WAIT_S) as rep:
            rep.wait(receipt, WAIT_S)
            assert {rep.get(key) for key in KEYS} == {b"1"}


def test_a_log_is_read_on_where_an_owner_goes_meanwhile() -> None:
    store = SharedStore()
    with ps.Broker(log=store.open("goes")) as goes, ps.Broker(log=store.open("stays")) as stays:
        with ps.connect(stays.endpoint, timeout=WAIT_S) as client:
            topic = client.create_topic("model", partitions=PARTITIONS)
            put_all(client.publisher("model", "trainer"), b"1").durable.result(WAIT_S)

        def make_link(handler: Handler, hello: Callable[[], Hello], name: str) -> Link:
            return Link([stays.endpoint], handler, hello, name)

        with closing(Pager(make_link, "reader", lambda: WAIT_S)) as pager:
            first = [pager.read((topic.id, number), 0, 1) for number in range(PARTITIONS)]
            closes = threading.Thread(target=goes.close)
            closes.start()
            rest = [pager.read((topic.id, n), position_of(first[n][-1]), 1 << 20) for n in range(PARTITIONS)]
            closes.join()
    frames = [decode_event(frame) for read in (*first, *rest) for frame in read]
    keys = [item.key for frame in frames if isinstance(frame.payload, Put) for item in frame.payload.items]
    assert sorted(keys) == sorted([*(key.encode() for key in KEYS), KEYS[0].encode()])
