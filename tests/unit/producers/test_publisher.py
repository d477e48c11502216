"""The publisher: what it refuses before a byte leaves, and what it makes of weights, KV, rows and gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fakes.publisher_stage import TOPIC, WINDOW_BYTES, Stage, open_stage
from paramstream.consistency.position import position
from paramstream.consistency.vector import VersionVector
from paramstream.errors import (
    BackpressureTimeout,
    EventLost,
    InvalidEvent,
    ParamstreamError,
    ParamstreamTimeout,
    SchemaMismatch,
    StorageFull,
    UnknownTopic,
    VersionConflict,
)
from paramstream.events.codec import EventFrame, decode_vector
from paramstream.events.digest import partition_of, version_digest
from paramstream.events.kinds import Chunk, Commit, Delete, DeleteRows, Gradients, Part, Put, Rows, Table, ValidFor
from paramstream.events.limits import MAX_CHUNK_BYTES, MAX_VALUE_BYTES
from paramstream.producers.publisher import Publisher
from paramstream.transport.calls import VersionRecord

WEIGHTS = 2
"""The number of the topic's weight partition."""


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = open_stage()
    yield stage
    stage.link.auto = True
    stage.link.deliver()


def weights(value: float = 1.0) -> dict[str, Any]:
    return {"w": np.full((2, 3), value, np.float32), "b": np.float32(value)}


def tensors_of(stage: Stage) -> dict[str, bytes]:
    """The bytes of every tensor whose chunks stand, by name."""
    found: dict[str, bytearray] = {}
    for event in stage.events(WEIGHTS):
        at = 0
        if isinstance(event.payload, Chunk):
            for segment in event.payload.segments:
                piece = event.bulk[at : at + segment.nbytes]
                found.setdefault(segment.name, bytearray())[segment.offset :] = piece
                at += segment.nbytes
    return {name: bytes(data) for name, data in found.items()}


# --- weights


def test_a_publish_is_chunks_then_parts_then_a_commit_that_names_them(stage: Stage) -> None:
    receipt = stage.publisher.publish_weights(weights(), version=3)
    chunk, part, commit = (event.payload for event in stage.events(WEIGHTS))
    assert isinstance(chunk, Chunk) and isinstance(part, Part) and isinstance(commit, Commit)
    assert [(spec.name, spec.first_chunk, spec.last_chunk) for spec in part.tensors] == [("w", 1, 1), ("b", 1, 1)]
    assert [(ref.producer, ref.incarnation, ref.sequence) for ref in commit.parts] == [("trainer", 1, 2)]
    assert commit.digest == version_digest(part.tensors)
    assert (receipt.version, receipt.positions) == (3, VersionVector({("m", WEIGHTS): position(1, 3)}))


def test_a_tensor_larger_than_the_window_goes_in_pieces_within_it_J01(stage: Stage) -> None:
    stage.link.auto = False
    most = 0
    done = threading.Event()

    def answer() -> None:
        nonlocal most
        while not done.wait(0.001):
            most = max(most, sum(len(frame) for frame in list(stage.link.wire)))
            stage.link.deliver(1)

    answering = threading.Thread(target=answer)
    answering.start()
    value = np.arange(8 * 1024 * 1024 // 4 + 16, dtype=np.float32)
    try:
        stage.publisher.publish_weights({"w": value}, version=1)
    finally:
        done.set()
        answering.join()
    stage.link.deliver()
    assert tensors_of(stage)["w"] == value.tobytes()
    assert 0 < most <= WINDOW_BYTES
    receipt = stage.publisher.put(b"small", b"0123456789")
    stage.link.deliver()
    assert receipt.outcome == "accepted"


def test_values_are_copied_before_publish_returns_N08(stage: Stage) -> None:
    stage.link.drop()
    value, entry = np.ones(10, np.float32), bytearray(b"before")
    stage.publisher.publish_weights({"w": value}, version=1)
    stage.publisher.put(b"a", entry)
    value[:] = -1
    entry[:] = b"after!"
    stage.link.connect()
    assert tensors_of(stage)["w"] == np.ones(10, np.float32).tobytes()
    assert bytes(stage.events(partition_of(b"a", 2))[-1].bulk) == b"before"


def test_a_publish_that_found_no_room_for_its_first_event_sent_nothing(stage: Stage) -> None:
    stage.link.auto = False
    stage.publisher.put(b"a", b"1")
    with pytest.raises(BackpressureTimeout):
        stage.publisher.publish_weights(weights(), version=1, timeout=0.05)
    stage.link.deliver()
    assert stage.events(WEIGHTS) == []
    assert stage.publisher.put(b"a", b"2").outcome == "pending"


def test_a_publish_that_stalls_midway_is_given_up_and_later_calls_go_on(stage: Stage) -> None:
    stage.link.auto = False
    with pytest.raises(ParamstreamTimeout) as caught:
        stage.publisher.publish_weights({"w": np.zeros(4 << 20, np.uint8)}, version=1, timeout=0.05)
    assert not isinstance(caught.value, BackpressureTimeout)
    stage.link.auto = True
    stage.link.deliver()
    assert stage.publisher.publish_weights(weights(), version=1).outcome == "accepted"


def test_what_a_stalled_publish_had_on_the_wire_does_not_go_again(stage: Stage) -> None:
    stage.link.auto = False
    with pytest.raises(ParamstreamTimeout):
        stage.publisher.publish_weights({"w": np.zeros(4 << 20, np.uint8)}, version=1, timeout=0.05)
    stage.link.drop()
    stage.link.auto = True
    stage.link.connect()
    assert stage.events(WEIGHTS) == []


def test_the_same_version_again_gets_the_receipt_of_the_first(stage: Stage) -> None:
    first = stage.publisher.publish_weights(weights(), version=1)
    sent = len(stage.link.sent)
    again = stage.publisher.publish_weights(weights(), version=1)
    assert again.positions == first.positions
    assert len(stage.link.sent) == sent


def test_another_digest_or_a_lower_version_conflicts_unless_it_rewinds(stage: Stage) -> None:
    stage.publisher.publish_weights(weights(1), version=5)
    stage.publisher.publish_weights(weights(2), version=6)
    sent = len(stage.link.sent)
    for version in (6, 4):
        with pytest.raises(VersionConflict) as caught:
            stage.publisher.publish_weights(weights(3), version)
        assert (caught.value.topic, caught.value.version) == ("m", version)
    assert len(stage.link.sent) == sent
    assert stage.publisher.publish_weights(weights(3), 4, rewind=True).outcome == "accepted"
    assert stage.publisher.publish_weights(weights(2), 5).outcome == "accepted"


def test_a_placeholder_shape_is_refused_and_nothing_reaches_the_log_A10(stage: Stage) -> None:
    stage.publisher.publish_weights({"p": np.ones((8, 16), np.float32)}, version=1)
    sent = len(stage.link.sent)
    with pytest.raises(SchemaMismatch, match=r"\(0,\).*\(8, 16\)") as caught:
        stage.publisher.publish_weights({"p": np.empty(0, np.float32)}, version=2)
    assert (caught.value.topic, caught.value.version, caught.value.item) == ("m", 2, "p")
    assert len(stage.link.sent) == sent


def test_the_second_publish_is_checked_by_the_first_though_that_has_no_answer_yet(stage: Stage) -> None:
    stage.link.auto = False
    stage.publisher.publish_weights({"p": np.ones(2, np.float32)}, version=1)
    sent = len(stage.link.sent)
    answering = threading.Timer(0.05, stage.link.deliver)
    answering.start()
    with pytest.raises(SchemaMismatch):
        stage.publisher.publish_weights({"p": np.ones(3, np.float32)}, version=2)
    answering.join()
    assert len(stage.link.sent) == sent


def test_a_replaced_schema_is_the_one_that_counts_from_then_on(stage: Stage) -> None:
    stage.publisher.publish_weights(weights(), version=1)
    stage.publisher.publish_weights({"new": np.ones(1)}, version=2, schema="replace")
    with pytest.raises(SchemaMismatch):
        stage.publisher.publish_weights(weights(), version=3)
    assert stage.publisher.publish_weights({"new": np.zeros(1)}, version=3).outcome == "accepted"


def test_tied_tensors_count_once_in_bytes_and_may_be_left_out_C01(stage: Stage) -> None:
    shared = torch.ones(4)
    stage.publisher.publish_weights({"embed.w": shared, "head.w": shared}, version=1)
    stage.publisher.publish_weights({"embed.w": torch.full((4,), 2.0)}, version=2)
    parts = [event.payload for event in stage.events(WEIGHTS) if isinstance(event.payload, Part)]
    for part in parts:
        assert [(spec.name, spec.tied_to) for spec in part.tensors] == [("embed.w", ""), ("head.w", "embed.w")]
    chunks = [event.payload for event in stage.events(WEIGHTS) if isinstance(event.payload, Chunk)]
    assert [sum(segment.nbytes for segment in chunk.segments) for chunk in chunks] == [16, 16]
    with pytest.raises(InvalidEvent, match="disagree"):
        stage.publisher.publish_weights({"embed.w": torch.ones(4), "head.w": torch.zeros(4)}, version=3)


def test_a_publish_that_lost_an_event_says_so_and_the_next_one_is_whole(stage: Stage) -> None:
    stage.link.auto = False
    lost = stage.publisher.publish_weights(weights(1), version=1)
    stage.link.drop(arrived=1)
    stage.owner.takeover((7, WEIGHTS), lose=1)
    stage.link.auto = True
    stage.link.connect()
    with pytest.raises(EventLost) as caught:
        lost.accepted.result(1)
    assert caught.value.version == 1
    assert stage.events(WEIGHTS) == []
    assert stage.publisher.publish_weights(weights(1), version=1).outcome == "accepted"


BAD_CALLS: list[Callable[[Any], object]] = [
    lambda p: p.publish_weights(weights(), 1, mode="delta"),
    lambda p: p.publish_weights(weights(), 1, mode="other"),
    lambda p: p.publish_weights(weights(), 1, schema="other"),
    lambda p: p.publish_weights(weights(), -1),
    lambda p: p.publish_weights(weights(), 1 << 63),
    lambda p: p.publish_weights(weights(), 1.0),
    lambda p: p.publish_weights({}, 1),
    lambda p: p.publish_weights({"w": np.array(["text"])}, 1),
    lambda p: p.put(b"", b"1"),
    lambda p: p.put("x" * 5000, b"1"),
    lambda p: p.put("\ud800", b"1"),
    lambda p: p.put(5, b"1"),
    lambda p: p.put("a", "text"),
    lambda p: p.put("a", bytes(MAX_VALUE_BYTES + 1)),
    lambda p: p.put("a", b"1", ttl=0),
    lambda p: p.put("a", b"1", ttl=-1.0),
    lambda p: p.put("a", b"1", ttl=float("nan")),
    lambda p: p.put("a", b"1", ttl="1"),
    lambda p: p.put("a", b"1", ttl=1e12),
    lambda p: p.put_many([("a", b"1"), ("b", 5)]),
    lambda p: p.delete(b""),
    lambda p: p.publish_rows("emb", np.arange(2, dtype=np.int32), np.ones((2, 3), np.float32)),
    lambda p: p.publish_rows("emb", [1.5], np.ones((1, 3), np.float32)),
    lambda p: p.publish_rows("emb", [1 << 63], np.ones((1, 3), np.float32)),
    lambda p: p.publish_rows("emb", [True], np.ones((1, 3), np.float32)),
    lambda p: p.publish_rows("emb", [[1]], np.ones((1, 3), np.float32)),
    lambda p: p.publish_rows("emb", [1, 2], np.ones((1, 3), np.float32)),
    lambda p: p.publish_rows("emb", [1], np.ones((1, 4), np.float32)),
    lambda p: p.publish_rows("emb", [1], np.ones((1, 3), np.float64)),
    lambda p: p.publish_gradients("emb", [1], np.ones(3, np.float32)),
    lambda p: p.delete_rows("emb", ["a"]),
]


@pytest.mark.parametrize("call", BAD_CALLS)
def test_bad_input_is_refused_before_a_byte_leaves(stage: Stage, call: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidEvent):
        call(stage.publisher)
    assert stage.link.sent == []
    stage.publisher.flush(1)


# --- KV


def test_a_key_may_be_text_and_a_value_any_buffer(stage: Stage) -> None:
    number = partition_of("ä".encode(), 2)
    for value in (b"ab", bytearray(b"ab"), memoryview(b"xaxb")[1::2], np.frombuffer(b"ab", np.uint8)):
        stage.publisher.put("ä", value, ttl=0.5)
    for event in stage.events(number):
        assert isinstance(event.payload, Put)
        assert [(item.key, item.ttl_ns) for item in event.payload.items] == [("ä".encode(), 500_000_000)]
        assert bytes(event.bulk) == b"ab"
    stage.publisher.delete("ä")
    payload = stage.events(number)[-1].payload
    assert isinstance(payload, Delete) and payload.keys == ("ä".encode(),)


def test_an_entry_for_a_version_carries_its_commit_where_that_stands(stage: Stage) -> None:
    def record(version: int, at: int, superseded: bool = False) -> VersionRecord:
        return VersionRecord(version, position(1, at), 0, 1, 1, bytes(16), False, superseded=superseded)

    stage.link.versions = [record(7, 10, superseded=True), record(8, 20, superseded=True), record(7, 30), record(9, 40)]
    for version in (7, 8, 10):
        stage.publisher.put(f"k{version}", b"v", valid_for=version)
    stage.publisher.put_many({"many": b"v"}, valid_for=9)
    items = [
        item
        for n in range(2)
        for event in stage.events(n)
        if isinstance(event.payload, Put)
        for item in event.payload.items
    ]
    assert {item.key: item.valid_for for item in items} == {
        b"k7": ValidFor(7, position(1, 30)),
        b"k8": ValidFor(8),
        b"k10": ValidFor(10),
        b"many": ValidFor(9, position(1, 40)),
    }
    with pytest.raises(InvalidEvent):
        stage.publisher.put("k", b"v", valid_for=-1)


def test_put_many_goes_to_its_partitions_side_by_side_as_one_call(stage: Stage) -> None:
    stage.link.auto = False
    receipt = stage.publisher.put_many({f"k{n}": b"%d" % n for n in range(20)}, ttl=9)
    assert len(stage.link.wire) == 2
    stage.link.deliver()
    assert set(receipt.positions) == {("m", 0), ("m", 1)}
    assert all(decode_vector(stage.events(number)[0].head.own) == VersionVector() for number in (0, 1))
    found = [
        item.key
        for n in (0, 1)
        for event in stage.events(n)
        if isinstance(event.payload, Put)
        for item in event.payload.items
    ]
    assert sorted(found) == sorted(b"k%d" % n for n in range(20))


def test_put_many_of_more_than_an_event_or_the_window_is_cut(stage: Stage) -> None:
    receipt = stage.publisher.put_many((f"k{n}", bytes(500 * 1024)) for n in range(10))
    assert receipt.outcome == "accepted"
    assert len(stage.events(0)) + len(stage.events(1)) == 10


def test_an_error_of_a_call_over_many_partitions_says_what_was_accepted(stage: Stage) -> None:
    stage.owner.refuse_next = StorageFull("full")
    receipt = stage.publisher.put_many({f"k{n}": b"v" for n in range(20)})
    with pytest.raises(StorageFull) as caught:
        receipt.accepted.result(1)
    assert caught.value.accepted is not None and len(caught.value.accepted) == 1


def test_an_empty_call_is_accepted_and_sends_nothing(stage: Stage) -> None:
    assert stage.publisher.put_many({}).accepted.result(1) == VersionVector()
    assert stage.publisher.publish_rows("emb", [], np.empty((0, 3), np.float32)).outcome == "durable"
    assert stage.link.sent == []


# --- rows and gradients


def test_rows_are_split_by_partition_and_keep_their_order(stage: Stage) -> None:
    keys = np.array([5, 6, 7, 5, 8, 9], np.int64)
    rows = np.arange(18, dtype=np.float32).reshape(6, 3)
    stage.publisher.publish_rows("emb", torch.from_numpy(keys), torch.from_numpy(rows))
    found: list[tuple[int, list[float]]] = []
    for number in (0, 1):
        for event in stage.events(number):
            payload = event.payload
            assert isinstance(payload, Rows)
            some = np.frombuffer(event.bulk, "<i8", payload.count)
            assert all(partition_of(key.tobytes(), 2) == number for key in some)
            values = np.frombuffer(event.bulk, "<f4", offset=some.nbytes).reshape(payload.count, 3)
            found += zip(some.tolist(), values.tolist(), strict=True)
    assert sorted(found) == sorted(zip(keys.tolist(), rows.tolist(), strict=True))
    assert [row for key, row in found if key == 5] == [[0, 1, 2], [9, 10, 11]]


def test_a_key_may_repeat_in_gradients(stage: Stage) -> None:
    stage.publisher.publish_gradients("emb", [4, 4], np.ones((2, 3), np.float32))
    [event] = stage.events(0) + stage.events(1)
    assert event.payload == Gradients("emb", 2, 3, "float32")


def test_rows_of_more_than_an_event_are_cut_and_deleted_rows_too(stage: Stage) -> None:
    count = 200_000
    assert stage.publisher.publish_rows("emb", range(count), np.ones((count, 3), np.float32)).outcome == "accepted"
    assert stage.publisher.delete_rows("emb", range(count)).outcome == "accepted"
    payloads = [event.payload for number in (0, 1) for event in stage.events(number)]
    assert sum(p.count for p in payloads if isinstance(p, Rows)) == count
    assert sum(p.count for p in payloads if isinstance(p, DeleteRows)) == count
    # A replica has all rows of an event in memory at once: of those that go it has no more than of those that come.
    of_rows = max(p.count for p in payloads if isinstance(p, Rows))
    assert max(p.count for p in payloads if isinstance(p, DeleteRows)) == of_rows


def test_gradients_of_one_key_go_in_one_event_however_large_the_call_is_E01(stage: Stage) -> None:
    per_event = MAX_CHUNK_BYTES // 20
    chance = np.random.default_rng(1)
    # Key 0 alone has more gradients than an event holds; others repeat, all over the call.
    keys = np.concatenate([np.zeros(2 * per_event, np.int64), chance.integers(1, per_event, 3 * per_event)])
    chance.shuffle(keys)
    grads = chance.integers(-8, 8, (len(keys), 3)).astype(np.float32)
    stage.publisher.publish_gradients("emb", keys, grads)
    seen: dict[int, list[list[float]]] = {}
    for number in (0, 1):
        events = stage.events(number)
        assert len(events) > 1
        for event in events:
            some, values = read_rows(event)
            assert not seen.keys() & set(some)
            for key, value in zip(some, values, strict=True):
                seen.setdefault(key, []).append(value)
    assert len(seen[0]) == 1 and np.array_equal(seen[0][0], grads[keys == 0].sum(axis=0))
    assert all(seen[key] == grads[keys == key].tolist() for key in list(seen)[:100] if key)
    assert seen.keys() == set(keys.tolist())


def test_gradients_that_are_no_numbers_are_refused_whole_with_their_keys_E07(stage: Stage) -> None:
    grads = np.ones((8, 3), np.float32)
    grads[2, 1], grads[3, 0] = np.nan, -np.inf
    for array in (grads, torch.from_numpy(grads)):
        with pytest.raises(
            InvalidEvent, match=r"NaN or infinities in the gradients of 2 keys: 13, 14 \(item"
        ) as refused:
            stage.publisher.publish_gradients("emb", range(11, 19), array)
        assert refused.value.item == "emb"
    assert stage.events(0) == stage.events(1) == []
    stage.publisher.publish_gradients("emb", range(11, 19), grads, nonfinite="pass")
    sent = {
        key: row
        for number in (0, 1)
        for event in stage.events(number)
        for key, row in zip(*read_rows(event), strict=True)
    }
    assert np.array_equal(np.array([sent[key] for key in range(11, 19)]), grads, equal_nan=True)
    with pytest.raises(InvalidEvent, match="nonfinite"):
        stage.publisher.publish_gradients("emb", [1], grads[:1], nonfinite="drop")  # type: ignore[arg-type]


def test_half_precision_gradients_that_are_no_numbers_are_found_too_E07(stage: Stage) -> None:
    tables = stage.owner.partitions[7, 0].tables
    sgd = tables[0].optimizer
    stage.owner.partitions[7, 0].tables = (
        *tables, Table("b", 2, "bfloat16", sgd), Table("h", 2, "float16", sgd), Table("d", 2, "float64", sgd),
    )  # fmt: skip
    for table, dtype in (("b", torch.bfloat16), ("h", torch.float16), ("d", torch.float64)):
        for bad in (float("nan"), float("inf"), float("-inf")):
            with pytest.raises(InvalidEvent, match="gradients of 1 key: 2 "):
                stage.publisher.publish_gradients(table, [1, 2], torch.tensor([[1.0, 2.0], [bad, 1.0]], dtype=dtype))
        assert stage.publisher.publish_gradients(table, [1], torch.ones(1, 2, dtype=dtype)).outcome == "accepted"


def test_a_table_without_an_optimizer_takes_no_gradients(stage: Stage) -> None:
    tables = stage.owner.partitions[7, 0].tables
    stage.owner.partitions[7, 0].tables = (*tables, Table("plain", 3, "float32"))
    with pytest.raises(InvalidEvent, match="no optimizer") as refused:
        stage.publisher.publish_gradients("plain", [1], np.ones((1, 3), np.float32))
    assert (refused.value.topic, refused.value.item) == ("m", "plain")
    # It may have got one since.
    stage.owner.partitions[7, 0].tables = (*tables, Table("plain", 3, "float32", tables[0].optimizer))
    assert stage.publisher.publish_gradients("plain", [1], np.ones((1, 3), np.float32)).outcome == "accepted"


def read_rows(event: EventFrame) -> tuple[list[int], list[list[float]]]:
    """Keys and values of an event of a table of float32."""
    payload = event.payload
    assert isinstance(payload, Rows | Gradients)
    keys = np.frombuffer(event.bulk, "<i8", payload.count)
    values = np.frombuffer(event.bulk, "<f4", offset=keys.nbytes).reshape(payload.count, payload.dim)
    return keys.tolist(), values.tolist()


def test_an_unknown_table_is_refused_by_name(stage: Stage) -> None:
    with pytest.raises(UnknownTopic) as caught:
        stage.publisher.publish_rows("nope", [1], np.ones((1, 3), np.float32))
    assert (caught.value.topic, caught.value.item) == ("m", "nope")


def test_a_table_made_after_the_session_joined_is_found(stage: Stage) -> None:
    tables = stage.owner.partitions[7, 0].tables
    stage.owner.partitions[7, 0].tables = (*tables, type(tables[0])("late", 1, "int64"))
    assert stage.publisher.publish_rows("late", [1], np.ones((1, 1), np.int64)).outcome == "accepted"


# --- observing


def test_later_publishes_depend_on_what_was_observed(stage: Stage) -> None:
    seen = VersionVector({("fast", 0): position(1, 9)})
    stage.publisher.observe(seen)
    receipt = stage.publisher.put(b"a", b"1")
    [event] = stage.events(partition_of(b"a", 2))
    assert decode_vector(event.head.observed) == VersionVector({(8, 0): position(1, 9)})
    assert seen <= receipt.vector


def test_each_publish_depends_on_what_the_observed_replica_serves_at_that_time(stage: Stage) -> None:
    class Replica:
        vector = VersionVector({("fast", 0): position(1, 1)})

    replica = Replica()
    publisher = Publisher(stage.session, TOPIC, stage.directory, observes=replica)
    publisher.put(b"a", b"1")
    replica.vector = VersionVector({("fast", 0): position(1, 2)})
    publisher.put(b"a", b"2")
    events = stage.events(partition_of(b"a", 2))
    assert [decode_vector(event.head.observed)[8, 0] for event in events] == [position(1, 1), position(1, 2)]


def test_an_observed_topic_that_there_is_not_is_an_error(stage: Stage) -> None:
    with pytest.raises(ParamstreamError):
        stage.publisher.observe(VersionVector({("nope", 0): 1}))
