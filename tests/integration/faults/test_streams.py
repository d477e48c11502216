"""The rest of the stream's surface, end to end: subscriptions, tables, receipts, observers, and what a broker tells of itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

import paramstream as ps
from paramstream.events.digest import partition_of
from reference.waiting import eventually
from reference.weights import check_weights, digest_of

W = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}


@pytest.fixture
def publisher(client: ps.Client) -> ps.Publisher:
    client.create_topic("model")
    return client.publisher("model", producer="trainer")


def take(events: ps.Subscription, count: int) -> list[ps.Event]:
    return [events.next(timeout=5.0) for _ in range(count)]


def values(events: list[ps.Event]) -> list[bytes | None]:
    return [value for event in events for _, value, _ in event.items]


# --- subscriptions ----------------------------------------------------------------------------------------------------------


def test_a_subscription_starts_at_head_earliest_or_a_vector(client: ps.Client, publisher: ps.Publisher) -> None:
    receipts = [publisher.put("k", b"%d" % n) for n in range(4)]
    second = receipts[1].accepted.result()
    publisher.flush()
    with (
        client.subscribe("model", start="head") as head,
        client.subscribe("model", start="earliest") as earliest,
        client.subscribe("model", start=second) as behind,
    ):
        publisher.put("k", b"4").accepted.result()
        assert values(take(head, 1)) == [b"4"]
        assert values(take(earliest, 5)) == [b"0", b"1", b"2", b"3", b"4"]
        assert values(take(behind, 3)) == [b"2", b"3", b"4"]
        for events in (head, earliest, behind):
            with pytest.raises(ps.ParamstreamTimeout):
                events.next(timeout=0.02)


def test_an_event_says_all_that_there_is_to_say(client: ps.Client, publisher: ps.Publisher) -> None:
    with client.subscribe("model") as events:
        before = time.time_ns()
        put = publisher.put("k", b"v", ttl=1.5)
        publisher.delete(b"k")
        weights = publisher.publish_weights(W, version=7)
        publisher.flush()
        one, gone, chunk, part, commit = take(events, 5)
        assert (one.topic, one.partition, one.kind, one.producer) == ("model", 0, "put", "trainer")
        assert one.position == put.positions["model", 0] and one.items == ((b"k", b"v", 1.5),)
        assert (one.sequence, gone.sequence) == (1, 2) and one.incarnation == gone.incarnation > 0
        assert before - 10**9 <= one.time <= gone.time <= time.time_ns() + 10**9
        assert one.vector == put.vector
        assert (gone.kind, gone.items) == ("delete", ((b"k", None, None),))
        assert [(e.kind, e.version) for e in (chunk, part, commit)] == [("chunk", 7), ("part", 7), ("commit", 7)]
        assert (chunk.name, part.name) == ("w", "w")
        assert commit.digest == digest_of(W) and commit.partition == 1
        assert commit.vector == weights.vector and one.vector <= commit.vector


def test_closing_a_subscription_ends_an_iteration_that_waits(client: ps.Client, publisher: ps.Publisher) -> None:
    events = client.subscribe("model")
    seen: list[bytes | None] = []
    reader = threading.Thread(target=lambda: seen.extend(values(list(events))))
    reader.start()
    publisher.put("k", b"v").accepted.result()
    eventually(lambda: not events._events)  # pyright: ignore[reportPrivateUsage]
    events.close()
    reader.join(5.0)
    assert not reader.is_alive() and seen in ([b"v"], [])


def test_receipts_and_subscriptions_are_awaited(client: ps.Client, publisher: ps.Publisher) -> None:
    async def main() -> None:
        with client.subscribe("model") as events:
            first = await publisher.put("k", b"0").accepted
            second = await publisher.put("k", b"1").durable
            many = await asyncio.gather(*(publisher.put("k", b"%d" % n).accepted for n in range(2, 20)))
            assert first["model", 0] < second["model", 0] < min(each["model", 0] for each in many)
            seen: list[bytes | None] = []
            async for event in events:
                seen += values([event])
                if len(seen) == 20:
                    break
            assert seen == [b"%d" % n for n in range(20)]
            with pytest.raises(ps.InvalidEvent):
                await publisher.put("", b"v").accepted
            closing = asyncio.get_running_loop().run_in_executor(None, events.close)
            assert [event async for event in events] == []
            await closing

    asyncio.run(main())


def test_a_refused_event_raises_where_it_is_awaited(client: ps.Client, publisher: ps.Publisher) -> None:
    publisher.publish_weights(W, version=3).accepted.result()
    other = client.publisher("model", producer="other")
    other.put("k", b"v")
    publisher.publish_weights(W, version=4).accepted.result()

    async def main() -> None:
        with pytest.raises(ps.VersionConflict):
            await other.publish_weights({"w": 2 * W["w"]}, version=4).accepted

    asyncio.run(main())


# --- tables -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_gradients_and_deletes_are_seen_by_subscribers(client: ps.Client, partitions: int) -> None:
    client.create_topic("rows", partitions=partitions)
    client.create_table("rows", "t", dim=2, dtype="float32", optimizer=ps.SGD(0.5))
    publisher = client.publisher("rows", producer="trainer")
    keys = np.array([5, -1, 1 << 40, 5 + (1 << 32), 7], np.int64)
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    with client.subscribe("rows") as events:
        receipts = [
            publisher.publish_rows("t", keys, rows),
            publisher.publish_gradients("t", torch.from_numpy(keys), torch.from_numpy(-rows)),
            publisher.delete_rows("t", keys[:2].tolist()),
        ]
        publisher.flush()
        owner = {int(key): partition_of(int(key).to_bytes(8, "little", signed=True), partitions) for key in keys}
        count = sum(len({owner[int(key)] for key in some}) for some in (keys, keys, keys[:2]))
        read = take(events, count)
        assert {event.kind for event in read} == {"rows", "gradients", "delete_rows"}
        for kind, sent, pick in (("rows", rows, "rows"), ("gradients", -rows, "grads")):
            got: dict[int, list[float]] = {}
            for event in (each for each in read if each.kind == kind):
                assert event.table == "t" and event.keys is not None and event.keys.dtype == np.int64
                array = getattr(event, pick)
                assert array.dtype == np.float32 and array.shape == (len(event.keys), 2)
                assert {owner[int(key)] for key in event.keys} == {event.partition}
                got |= {int(key): row.tolist() for key, row in zip(event.keys, array, strict=True)}
            assert got == {int(key): row.tolist() for key, row in zip(keys, sent, strict=True)}
        deletes = [event.keys for event in read if event.kind == "delete_rows" and event.keys is not None]
        gone = [int(key) for some in deletes for key in some]
        assert sorted(gone) == [-1, 5]
        assert {p for receipt in receipts for p in receipt.positions} == {("rows", owner[int(key)]) for key in keys}
    with client.replica("rows") as replica:
        assert replica.table("t").rows == len(keys) - 2
        kept = replica.lookup("t", keys[2:])
        assert kept.tolist() == (1.5 * rows[2:]).tolist()


def test_bad_rows_are_refused_by_table_with_what_it_needs(client: ps.Client, publisher: ps.Publisher) -> None:
    client.create_table("model", "t", dim=2, optimizer=ps.SGD(0.5))
    client.create_table("model", "h", dim=4, dtype="bfloat16", optimizer=ps.SGD(0.5))
    keys, rows = np.array([1, 2]), np.ones((2, 2), np.float32)
    with client.subscribe("model") as events:
        for call in (publisher.publish_rows, publisher.publish_gradients):
            for bad_keys, bad_rows in (
                (keys, np.ones((2, 3), np.float32)),
                (keys, np.ones((3, 2), np.float32)),
                (keys, np.ones(4, np.float32)),
                (keys, np.ones((2, 2), np.float64)),
                (keys.astype(np.int32), rows),
                (keys.astype(np.uint64), rows),
                (keys.astype(np.float64), rows),
                (keys.reshape(2, 1), rows),
                (["a", "b"], rows),
                (keys, None),
            ):
                with pytest.raises(ps.InvalidEvent) as refused:
                    call("t", bad_keys, bad_rows)
                assert refused.value.item == "t"
            with pytest.raises(ps.UnknownTopic, match="create_table") as unknown:
                call("u", keys, rows)
            assert (unknown.value.topic, unknown.value.item) == ("model", "u")
        with pytest.raises(ps.UnknownTopic):
            publisher.delete_rows("u", keys)
        publisher.publish_rows("h", [3], torch.ones((1, 4), dtype=torch.bfloat16)).accepted.result()
        (event,) = take(events, 1)
        assert event.table == "h" and event.rows is not None and event.rows.tolist() == [[1, 1, 1, 1]]


def test_a_table_has_one_definition(client: ps.Client, publisher: ps.Publisher) -> None:
    client.create_table("model", "t", dim=2)
    client.create_table("model", "t", dim=2, exist_ok=True)
    others: list[Callable[[], None]] = [
        lambda: client.create_table("model", "t", dim=2),
        lambda: client.create_table("model", "t", dim=3, exist_ok=True),
        lambda: client.create_table("model", "t", dim=2, dtype="float64", exist_ok=True),
    ]
    for call in others:
        with pytest.raises(ps.TopicExists) as exists:
            call()
        assert (exists.value.topic, exists.value.item) == ("model", "t")
    impossible: list[Callable[[], None]] = [
        lambda: client.create_table("model", "u", dim=0),
        lambda: client.create_table("model", "u", dim=-1),
        lambda: client.create_table("model", "u", dim=1 << 30),
        lambda: client.create_table("model", "u", dim=2.5),  # type: ignore[arg-type]
        lambda: client.create_table("model", "u", dim=1, dtype="object"),
        lambda: client.create_table("model", "u", dim=1, expire_after=-1.0),
        lambda: client.create_table("model", "u", dim=1, expire_after=1e12),
        lambda: client.create_table("model", "u", dim=1, expire_after=float("nan")),
    ]
    for call in impossible:
        with pytest.raises(ps.InvalidEvent):
            call()
    # Another client's publisher, opened before, learns of a table when it needs it.
    client.create_table("model", "late", dim=1)
    publisher.publish_rows("late", [1], np.ones((1, 1), np.float32)).accepted.result()


# --- who observes whom ------------------------------------------------------------------------------------------------------


def test_what_a_publisher_has_observed_comes_first_everywhere(client: ps.Client) -> None:
    for topic in ("cause", "effect"):
        client.create_topic(topic, partitions=2)
    one = client.publisher("cause", producer="one")
    with client.replica("cause") as seen, client.replica(["cause", "effect"]) as both:
        two = client.publisher("effect", producer="two", observes=seen)
        cause = one.put("k", b"cause")
        seen.wait(cause)
        effect = two.put("k", b"effect")
        assert cause.vector <= effect.vector
        both.wait(effect)
        assert both.get("k", topic="cause") == b"cause"
        # By hand: a vector, a receipt.
        three = client.publisher("effect", producer="three")
        assert not cause.vector <= three.put("j", b"1").vector
        three.observe(cause)
        assert cause.vector <= three.put("j", b"2").vector
        three.observe(effect.vector)
        assert effect.vector <= three.put("j", b"3").vector <= three.put("j", b"4").vector


def test_a_receipt_goes_to_another_process_as_text(
    broker: ps.Broker, client: ps.Client, publisher: ps.Publisher
) -> None:
    receipt = publisher.publish_weights(W, version=1)
    text = str(receipt)
    with ps.connect(broker.endpoint) as other, other.replica("model", arrays="numpy") as replica:
        parsed = ps.Receipt.parse(text)
        assert (parsed.version, parsed.positions, parsed.vector) == (1, receipt.positions, receipt.vector)
        replica.wait(parsed)
        check_weights(replica.weights(), W, 1)
    for bad in ("", "receipt", "receipt:1;a", text + ";x", text.replace("receipt:1", "receipt:9")):
        with pytest.raises(ps.InvalidEvent, match="receipt"):
            ps.Receipt.parse(bad)


# --- what a broker tells ----------------------------------------------------------------------------------------------------


def test_versions_and_replicas_are_told_as_they_are(client: ps.Client, publisher: ps.Publisher) -> None:
    assert client.versions("model") == [] and client.replicas("model") == []
    first = publisher.publish_weights(W, version=1)
    publisher.publish_weights({"w": 2 * W["w"]}, version=2).durable.result()
    one, two = client.versions("model")
    assert (one.version, one.tensors, one.bytes, one.digest, one.restorable) == (1, 1, 24, digest_of(W), True)
    assert two.version == 2 and one.time <= two.time and abs(one.time.timestamp() - time.time()) < 60
    assert ps.VersionVector({("model", 1): one.position}) == first.positions
    with client.replica("model", name="reader"), client.replica("model"):
        # A report may have been made while the last event was applied; the next one comes within half a second.
        eventually(lambda: [(each.version, each.lag_events) for each in client.replicas("model")] == [(2, 0)] * 2)
        reader = next(each for each in client.replicas("model") if each.name == "reader")
        assert (reader.version, reader.lag_events, reader.last_error, reader.stale) == (2, 0, "", False)
        assert reader.served["model"].digest == two.digest
        assert reader.applied["model", 1] == reader.served["model"].position


def test_a_deleted_topic_is_gone_and_its_name_can_be_had_again(client: ps.Client, publisher: ps.Publisher) -> None:
    publisher.publish_weights(W, version=9)
    publisher.put("k", b"old").durable.result()
    with client.replica("model", arrays="numpy") as replica, client.subscribe("model") as events:
        client.delete_topic("model")
        assert client.topics() == []
        with pytest.raises(ps.UnknownTopic):
            client.replica("model")
        with pytest.raises(ps.UnknownTopic):
            events.next(timeout=5.0)
        with pytest.raises(ps.UnknownTopic):
            publisher.put("k", b"lost").accepted.result()
        # What was served stays, and is called stale, until the new topic of the name has a version.
        eventually(lambda: replica.status().stale)
        check_weights(replica.weights(), W, 9)
        client.create_topic("model", partitions=2)
        again = client.publisher("model", producer="trainer")
        again.put("k", b"new").accepted.result()
        eventually(lambda: replica.get("k") == b"new")
        check_weights(replica.weights(), W, 9)
        again.publish_weights({"w": np.ones(1)}, version=1).accepted.result()
        eventually(lambda: replica.weights().version == 1 and not replica.status().stale)
        check_weights(replica.weights(), {"w": np.ones(1)}, 1)


def test_a_replica_that_comes_late_starts_with_the_complete_state(client: ps.Client) -> None:
    client.create_topic("model", partitions=3)
    publishers = [client.publisher("model", producer=name) for name in ("one", "two", "three")]
    model: dict[str, bytes] = {}
    for n in range(120):
        key = f"key-{n % 50}"
        model[key] = b"%d" % n
        publishers[n % 3].put(key, model[key]).accepted.result()
        if n % 40 == 39:
            publishers[0].publish_weights({"w": np.array([n])}, version=n)
    for publisher in publishers:
        publisher.flush()
    with (
        client.replica("model", arrays="numpy") as latest,
        client.replica("model", start="earliest", catch_up="all", keep_versions=3, arrays="numpy") as earliest,
        client.replica("model", partitions=[1], arrays="numpy") as partial,
    ):
        for replica in (latest, earliest):
            assert replica.get_many(model) == list(model.values())
            check_weights(replica.weights(), {"w": np.array([119])}, 119)
        assert latest.digest() == earliest.digest() != partial.digest()
        check_weights(earliest.weights(version=39), {"w": np.array([39])}, 39)
        with pytest.raises(ps.VersionNotHeld):
            latest.weights(version=39)
        mine = [key for key in model if partition_of(key.encode(), 3) == 1]
        assert partial.get_many(mine) == [model[key] for key in mine]
        with pytest.raises(ps.InvalidEvent, match="does not follow"):
            partial.get(next(key for key in model if key not in mine))
        check_weights(partial.weights(), {"w": np.array([119])}, 119)
