"""What comes from Kafka, where strangers may write too: batches, records, marks, members' words, changelogs, names and settings."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import msgspec
import numpy as np

from fuzzing import sealing, wire
from fuzzing.examples import examples_of, joined, split
from fuzzing.target import Target
from paramstream.consistency.vector import PartitionId, VersionVector
from paramstream.consumers.changelog.records import (
    EntryRecord,
    Marker,
    RowRecord,
    RowsOf,
    entry_record,
    marker,
    marker_record,
    read_record,
    row_records,
    table_record,
)
from paramstream.consumers.changelog.seeding import seed_of
from paramstream.consumers.definitions import Defined
from paramstream.errors import InvalidEvent
from paramstream.eventlog.changelog import ChangelogRecord
from paramstream.eventlog.kafka.membership import Claimant, SlotMap, decode_claimant, decode_map, encode, share_out
from paramstream.eventlog.kafka.records import Assembler, Mark, Record, mark_of, pieces_of
from paramstream.eventlog.kafka.settings import KafkaLog
from paramstream.eventlog.kafka.topics import changelog_name, check_settings, kafka_name, topic_of
from paramstream.eventlog.kafka.wire import TopicSettings, aiokafka, read_page
from paramstream.events.kinds import Optimizer, Table
from paramstream.tiers.entries import Entry
from paramstream.tiers.rows.batch import RowBatch
from paramstream.transport.calls import TopicRecord
from records.frames import PARTITION, Owner

SLOTS = 32


# --- batches and records ------------------------------------------------------------------------------------------------


def batch(data: bytes) -> None:
    """A page as Kafka answers a fetch: as it is, and with the checksum of its first batch made right."""
    for page in (data, _with_checksum(data)):
        for record in read_page(0, page, 0).records:
            assert isinstance(record.value, bytes)


def _with_checksum(data: bytes) -> bytes:
    checked_from = 21
    crc = int(aiokafka(".record.util").calc_crc32c(data[checked_from:]))
    return data[:17] + crc.to_bytes(4, "big") + data[checked_from:]


def batches() -> Iterable[bytes]:
    for compression in (0, 1):
        builder = aiokafka(".record.default_records").DefaultRecordBatchBuilder(
            2, compression, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=0, batch_size=1 << 20
        )
        for number, (key, value) in enumerate(((b"key", b"value"), (None, b"x" * 50))):
            builder.append(number, 1, key, value, [])
        yield bytes(builder.build())


def records(data: bytes) -> None:
    """Records in a row, each a key and a value: frames come out whole, or their damage is named, and strangers are passed over.

    Pieces: key (empty: none) and value in turn.
    """
    pieces, assembler = split(data), Assembler(PARTITION)
    for offset, key, value in zip(count(), pieces[::2], pieces[1::2], strict=False):
        whole = assembler.take(Record(offset, key or None, value))
        if whole is not None:
            assert whole.offset < whole.end == offset + 1
            assert (whole.prefix.topic, whole.prefix.partition) == PARTITION


def sealed_records(data: bytes) -> None:
    """The same where each value that begins as a frame is one."""
    pieces = split(data)
    records(joined([sealing.frame(piece) if piece[:2] == b"PS" and len(piece) > 64 else piece for piece in pieces]))


def record_rows() -> Iterable[bytes]:
    owner = Owner()
    frames = [memoryview(bytes(frame)) for frame in (*owner.opening(), owner.put())]
    yield joined([piece for frame in frames for piece in (mark_of(frame, 0, 1, -1, 7).encode(), bytes(frame))])
    large, halves = frames[2], (frames[2][:80], frames[2][80:])
    assert len(pieces_of(large)) == 1
    yield joined(
        [part for at, half in enumerate(halves) for part in (mark_of(large, at, 2, 0, 9).encode(), bytes(half))]
    )


def mark(data: bytes) -> None:
    found = Mark.decode(data)
    if found is not None:
        assert found.encode() == data


# --- members ------------------------------------------------------------------------------------------------------------


def members(data: bytes) -> None:
    """Whatever members say of themselves: the slots are shared out, each to exactly one."""
    claimants = {f"member-{number}": decode_claimant(piece) for number, piece in enumerate(split(data, 8))}
    if claimants:
        slot_map = share_out(claimants, SLOTS, 5)
        assert sorted(slot for member in slot_map.members for slot in member.slots) == list(range(SLOTS))
        assert decode_map(encode(slot_map)) == slot_map


def claims() -> Iterable[bytes]:
    made = [encode(Claimant(f"broker-{n}", f"tcp://h:{n}", n, tuple(range(n * 8, n * 8 + 8)), 1)) for n in range(3)]
    yield joined(made[:1])
    yield joined(made)


def slot_map(data: bytes) -> None:
    found = decode_map(data)
    assert decode_map(encode(found)) == found
    for member in found.members:
        found.slots_of(member.broker)
        encode(found.without_slots_of(member.broker))


# --- changelogs ---------------------------------------------------------------------------------------------------------


class _Changelog:
    """One that holds what it was given."""

    def __init__(self, records: list[ChangelogRecord]) -> None:
        self._records = records

    def open(self, partition: PartitionId, name: str, partitions: int) -> _Changelog:
        return self

    def take_over(self) -> None: ...
    def write(self, records: object) -> None: ...

    def read(self) -> Iterable[ChangelogRecord]:
        return iter(self._records)

    def close(self) -> None: ...


def changelog(data: bytes) -> None:
    """A changelog of keys and values in turn (an empty value: a tombstone): a restore begins with it, or says what is wrong."""
    pieces = split(data)
    rows = [ChangelogRecord(k, v or None) for k, v in zip(pieces[::2], pieces[1::2], strict=False)]
    for row in rows:
        found = read_record(row, "of model/0")
        match found:
            case EntryRecord():
                again = entry_record(*found)
            case Defined():
                again = table_record(found)
            case Marker():
                again = marker_record(found)
            case RowRecord():
                again = row
        assert read_record(again, "again") == found
    seed = seed_of(_Changelog(rows), TopicRecord("model", 77, 1, "write_back", 8), [0])  # type: ignore[arg-type]
    for state in seed.state:
        for _, held in state.entries():
            assert held.position <= state.ceiling
        for _, batch in state.rows():
            assert batch.positions.max() <= state.ceiling


def changelogs() -> Iterable[bytes]:
    rows = [
        entry_record(b"key", Entry(b"value", 5 << 28 | 3, 10**18, (7, 5 << 28 | 2))),
        entry_record(b"gone", None),
        marker_record(marker(5 << 28, 5 << 28 | 4, VersionVector({(77, 0): 5 << 28 | 3}))),
    ]
    yield joined([piece for row in rows for piece in (row.key, row.value or b"")])
    yield joined([rows[2].key, rows[2].value or b""])
    table = Table(
        "users", 2, "float32", Optimizer("adagrad", {"lr": 0.1, "eps": 1e-8, "initial_accumulator_value": 0.0})
    )
    defined = Defined(table, 4 << 28, 3 << 28)
    batch = RowBatch(
        np.array([1, -1, 5]),
        np.ones((3, 2), np.float32),
        np.zeros((3, 2), np.float32),
        "adagrad",
        np.array([5 << 28 | 1, 5 << 28 | 2, 0], np.uint64),
    )
    learned = [*row_records(RowsOf("users", 3 << 28), batch), table_record(defined), rows[2]]
    yield joined([piece for row in learned for piece in (row.key, row.value or b"")])


# --- names and settings -------------------------------------------------------------------------------------------------


def topic_names(data: bytes) -> None:
    """What Kafka calls its topics: ours are told from others."""
    text = data.decode(errors="replace")
    for name in text.split("\n"):
        found = topic_of("paramstream.", name)
        if found is not None:
            assert topic_of("paramstream.", kafka_name("paramstream.", name, found)) == found
            assert topic_of("paramstream.", changelog_name("paramstream.", name, found)) is None


def topic_settings(data: bytes) -> None:
    """What Kafka says is set for a topic of ours: names and values by turns."""
    pieces = [piece.decode(errors="replace") for piece in split(data)]
    check_settings("topic", TopicSettings(3, 1, dict(zip(pieces[::2], pieces[1::2], strict=False))))


def settings(data: bytes) -> None:
    """As a broker hands them to its keeper."""
    found = KafkaLog.decode(data)
    assert KafkaLog.decode(found.encode()) == found


def settings_texts() -> Iterable[bytes]:
    yield KafkaLog(["kafka-1:9092", "[::1]:9092"], replication_factor=3).encode()
    yield KafkaLog(
        "h:1", security_protocol="SASL_SSL", sasl_plain_username="u", sasl_plain_password="p", ssl_cafile="/ca"
    ).encode()


TARGETS = (
    Target("kafka-batch", batch, batches),
    Target("kafka-records", records, record_rows),
    Target("kafka-sealed-records", sealed_records, lambda: list(record_rows())[:1]),
    Target("kafka-mark", mark, lambda: [mark_of(memoryview(wire.frames()[0]), 0, 2, 7, 9).encode()]),
    Target("kafka-members", members, claims),
    Target("kafka-slot-map", slot_map, lambda: [msgspec.msgpack.encode(each) for each in examples_of(SlotMap)]),
    Target("kafka-changelog", changelog, changelogs),
    Target(
        "kafka-topic-names", topic_names, lambda: [b"paramstream.model.0000000000000007\nx", b"paramstream.m.changelog"]
    ),
    Target(
        "kafka-topic-settings",
        topic_settings,
        lambda: [joined([b"retention.ms", b"-1", b"max.message.bytes", b"1048588", b"min.insync.replicas", b"1"])],
        errors=(InvalidEvent,),
    ),
    Target("kafka-settings", settings, settings_texts, errors=(InvalidEvent,)),
)
