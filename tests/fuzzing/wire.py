"""What comes over a wire: event frames, vectors, control frames, answers of calls and of fetches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from cores.partitions import PARTITION
from fakes.served_source import TABLE, TOPIC, FakeSource
from fuzzing import sealing
from fuzzing.examples import examples_of, joined, split
from fuzzing.target import Target
from paramstream.brokers.reports import Reports
from paramstream.cli.subscribe import event_line, event_record
from paramstream.consistency.vector import PartitionId, VersionVector
from paramstream.consumers.events import event_of
from paramstream.consumers.lookups.answers import Waiting, read_entries, read_rows
from paramstream.consumers.lookups.answers import answer as answer_to
from paramstream.consumers.status import ReplicaStatus
from paramstream.errors import CorruptLog, InvalidEvent
from paramstream.events.codec import (
    MAX_BASE_BYTES,
    EventFrame,
    Head,
    check_frame,
    decode_event,
    decode_vector,
    encode_event,
    encode_vector,
    partition_in,
    position_of,
    read_prefix,
    stamp_frame,
)
from paramstream.events.digest import tensor_digest, version_digest
from paramstream.events.kinds import (
    PAYLOADS,
    Chunk,
    Commit,
    DeleteRows,
    DenseGradients,
    GradientPiece,
    Gradients,
    Part,
    PartRef,
    Payload,
    Put,
    Rows,
    Segment,
    Table,
    TensorSpec,
)
from paramstream.events.validate import check_payload
from paramstream.producers.past import Past
from paramstream.transport.calls import (
    BrokerRecord,
    Joined,
    PartitionRecord,
    PreparedCommit,
    TopicRecord,
    VersionRecord,
)
from paramstream.transport.directory import Directory
from paramstream.transport.lookups import (
    MAX_ANSWER_BYTES,
    Declined,
    FoundEntries,
    FoundRows,
    GetEntries,
    LookUp,
    Need,
    decode_answer,
    decode_question,
    encode_frame,
)
from paramstream.transport.messages import (
    AnyMessage,
    Fetched,
    Report,
    Request,
    decode_message,
    decode_result,
    encode_message,
    encode_result,
)
from paramstream.transport.pieces import AnswerReader, pieces_of

VALUES = np.arange(4, dtype=np.float32)
VECTOR = encode_vector(VersionVector({(7, 0): 1 << 28 | 3, (7, 1): 2 << 28}))
ANSWERS: tuple[Any, ...] = (
    TopicRecord, list[TopicRecord], bool, int, type(None), Joined, list[VersionRecord], list[Report],
    list[PartitionRecord], PreparedCommit, list[tuple[int, int, int]], BrokerRecord, dict[str, str],
)  # fmt: skip
"""What calls are answered with (`transport/calls.py`)."""


# --- events -------------------------------------------------------------------------------------------------------------


def whole_payloads() -> Iterable[tuple[Payload, bytes]]:
    """Events of each kind that are right in themselves, with their bulk."""
    data, keys = VALUES.tobytes(), np.arange(2, dtype=np.int64).tobytes()
    spec = TensorSpec("w", "float32", (4,), tensor_digest(data), len(data), 1, 1)
    tied = TensorSpec("tied", "float32", (4,), spec.digest, len(data), tied_to="w")
    yield Chunk(7, (Segment("w", 0, len(data)),)), data
    yield Part(7, (spec, tied)), b""
    yield Commit(7, (PartRef("trainer-0", 1, 2),), version_digest([spec, tied]), needs=VECTOR), b""
    yield Rows("table", 2, 4, "float32"), keys + 2 * data
    yield Gradients("table", 2, 4, "float32"), keys + 2 * data
    halves = tuple(GradientPiece("w", "float32", (4,), spec.digest, at, 8) for at in (0, 8))
    yield DenseGradients(7, 1, 3, (*halves, GradientPiece("bias", "float32", (0, 2), spec.digest, 0, 0))), data
    yield DeleteRows("table", 2), keys
    yield DeleteRows("table", 2, up_to=5 << 28), keys
    for put in examples_of(Put):
        items = tuple(msgspec.structs.replace(each, nbytes=3, ttl_ns=10**9) for each in put.items)
        yield Put(items), b"abc" * len(items)
    for table in examples_of(Table):
        yield msgspec.structs.replace(table, dim=4, dtype="float32"), b""
    made = {Chunk, Part, Commit, Rows, Gradients, DenseGradients, DeleteRows, Put, Table}
    for kind in PAYLOADS.values():
        if kind not in made:
            yield from ((example, b"") for example in examples_of(kind))


def frames() -> list[bytes]:
    found: list[bytes] = []
    for number, (payload, bulk) in enumerate(whole_payloads()):
        head = Head("trainer-0", 1, number + 1, number, 5, 0, VECTOR, VECTOR, (9, 0))
        made = encode_event(PARTITION, head, payload, [bulk])
        stamp_frame(made, position=5 << 28 | number + 1, time=10**18, nonce=5)
        found.append(bytes(made))
    return found


def raw_frame(data: bytes) -> None:
    """All readers of a frame say the same of it."""
    event = decode_event(data)
    prefix = check_frame(data)
    assert prefix == read_prefix(data)
    assert (prefix.position, prefix.nbytes, prefix.bulk_nbytes) == (event.position, event.nbytes, len(event.bulk))
    assert (position_of(data), partition_in(data)) == (event.position, event.partition_id)


def sealed_frame(data: bytes) -> None:
    """What is decoded can be encoded, and is shown to users, whoever wrote it."""
    event = decode_event(sealing.frame(data))
    once = encoded(event)
    assert encoded(decode_event(once)) == once
    stamp = event.stamp()
    check_payload(event.payload, len(event.bulk))
    shown = event_of(event, stamp, "topic", _names)
    if shown is not None:
        assert VersionVector.parse(str(shown.vector)) == shown.vector
        event_line(shown)
        json.dumps(event_record(shown))


def encoded(event: EventFrame) -> bytes:
    made = encode_event(event.partition_id, event.head, event.payload, [event.bulk], limit=MAX_BASE_BYTES)
    stamp_frame(made, position=event.position, time=event.time, nonce=event.nonce)
    return bytes(made)


def _names(vector: Mapping[PartitionId, int]) -> VersionVector[str]:
    return VersionVector({(f"{topic:x}", number): at for (topic, number), at in vector.items()})


def vector(data: bytes) -> None:
    found = decode_vector(data)
    again = encode_vector(found)
    assert decode_vector(again) == found
    if list(found) == sorted(found) and len(again) == len(data):
        assert again == data


# --- control frames and answers -----------------------------------------------------------------------------------------


def message(data: bytes) -> None:
    found = decode_message(b"PC\x01" + data)
    again = encode_message(found)
    assert encode_message(decode_message(again)) == again
    if isinstance(found, Report):
        taken = Reports()
        taken.take(found)
        for reported in taken.newest():
            _status(reported)
    if isinstance(found, Request):
        assert found.call.repeated().to is not None


def messages() -> Iterable[bytes]:
    return [encode_message(each)[3:] for each in examples_of(AnyMessage)]


def answer(data: bytes) -> None:
    """The first byte says which call is answered."""
    kind = ANSWERS[data[0] % len(ANSWERS)] if data else bool
    found = decode_result(msgspec.Raw(data[1:]), kind)
    again = encode_result(found)
    assert encode_result(decode_result(again, kind)) == again
    if isinstance(found, Joined):
        for member in found.partitions:
            if member.last is not None:
                Past().take_up((member.topic, member.partition), member.last)
        for stopped in found.stopped:
            str(stopped.error.raised())
    if kind == list[Report]:
        _look_at(decode_result(again, kind))


def _look_at(reports: list[Report]) -> None:
    for report in reports:
        _status(report)


def _status(report: Report) -> None:
    status = ReplicaStatus.of_report(report, Directory(lambda call, kind, timeout: []))
    for error in status.failed.values():
        str(error)


def answers() -> Iterable[bytes]:
    for number, kind in enumerate(ANSWERS):
        for example in examples_of(kind):
            yield bytes([number]) + bytes(encode_result(example))


def fetched(data: bytes) -> None:
    """Messages of a fetch socket: every frame that comes out was said, with its size, by the answer that it came under."""
    reader = AnswerReader()
    for piece in split(data):
        try:
            whole = reader.take(memoryview(piece))
        except CorruptLog:
            continue
        if whole is not None:
            told, found = whole
            assert [len(each) for each in found] == list(told.sizes) and len(found) == told.count


def fetches() -> Iterable[bytes]:
    some = [memoryview(each) for each in frames()[:3]]
    told = Fetched(1, *PARTITION, 3, 9, 9, sizes=tuple(len(each) for each in some))
    yield joined([encode_message(told), *(bytes(piece) for piece in pieces_of(some))])
    yield joined([encode_message(told), *(bytes(each) for each in some), encode_message(Fetched(2, 7, 0, 0, 9, 9))])


# --- look-ups -----------------------------------------------------------------------------------------------------------


def question(data: bytes) -> None:
    """Whatever is asked is answered, or waits, within bounds."""
    asked, bulk = decode_question(b"PL\x01" + data)
    assert decode_question(encode_frame(asked, bulk)) == (asked, bulk)
    source = FakeSource()
    source.entries = {bytes(20): b"value"}
    found = answer_to(source, asked, bulk)
    if isinstance(found, Waiting):
        assert 0 <= found.most_s <= 3600
    elif isinstance(found, bytes):
        decode_answer(found)
        assert len(found) <= MAX_ANSWER_BYTES + len(data) + 4096
    else:
        str(found.error.raised())


def questions() -> Iterable[bytes]:
    keys = np.arange(3, dtype=np.int64).tobytes()
    needs = Need(0, 5, True), Need(0, 5 << 28, False)
    yield encode_frame(LookUp(1, TOPIC, (0,), needs[:1], 0.5, TABLE), keys)[3:]
    yield encode_frame(LookUp(1, TOPIC, (0,), needs, 0.5, TABLE), keys)[3:]
    yield encode_frame(GetEntries(1, TOPIC, (0,), (), 0.5, (bytes(20), b"k")))[3:]
    yield from (encode_frame(each, keys)[3:] for each in examples_of(LookUp | GetEntries))


def found(data: bytes) -> None:
    """What answers a question of three keys has something for each, or is refused."""
    told, bulk = decode_answer(b"PL\x01" + data)
    assert decode_answer(encode_frame(told, bulk)) == (told, bulk)
    match told:
        case FoundRows():
            values, there = read_rows(told, bulk, 3)
            assert len(values) == len(there) == told.count <= 3
        case FoundEntries():
            assert 0 < len(read_entries(told, bulk, 3)) <= 3
        case Declined():
            str(told.error.raised())


def founds() -> Iterable[bytes]:
    yield encode_frame(FoundRows(1, 2, 4, "float32", ((0, 5),)), VALUES.tobytes() * 2, b"\1\0")[3:]
    yield encode_frame(FoundEntries(1, (3, -1, 0), ((0, 5),)), b"abc")[3:]
    yield from (encode_frame(each)[3:] for each in examples_of(FoundRows | FoundEntries | Declined))


TARGETS = (
    Target("frame", raw_frame, frames),
    Target("event", sealed_frame, frames, errors=(CorruptLog, InvalidEvent)),
    Target("vector", vector, lambda: [b"", VECTOR, VECTOR * 3]),
    Target("message", message, messages),
    Target("answer", answer, answers),
    Target("fetched", fetched, fetches),
    Target("question", question, questions),
    Target("found", found, founds),
)
