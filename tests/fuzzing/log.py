"""What a log's folder holds: segments, their indices, the small files beside them, bases, and what `__meta` says of topics."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from cores.partitions import Session, start
from fuzzing import sealing, wire
from fuzzing.examples import examples_of, joined, split
from fuzzing.target import Target
from paramstream.brokers.checks import Role
from paramstream.brokers.meta import MetaState
from paramstream.brokers.state import PartitionState
from paramstream.errors import CorruptLog, ParamstreamError, UnknownTopic
from paramstream.eventlog.counting import BEGINNING, Point
from paramstream.eventlog.files import Disk
from paramstream.eventlog.index import Entry, Index
from paramstream.eventlog.local import held_partitions
from paramstream.eventlog.marks import End, EndFile, FailureCount, check_failures
from paramstream.eventlog.segment import HEADER_NBYTES, Header, Scan, find_whole_record
from paramstream.events.codec import check_frame, decode_event
from paramstream.events.kinds import Commit, Kind, Table
from paramstream.transport.calls import AnnouncedSnapshot, TopicRecord
from records.frames import Owner

MEMORY = Path("/dev/shm")
"""Where files cost no disk; any machine has another place for them too."""

TOPIC = 77
HEADER = Header((TOPIC, 0), 1, 0, 0, BEGINNING, False)
POINT = Point(5, 1, 5 << 28 | 3)


def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="paramstream-fuzz-", dir=MEMORY if MEMORY.is_dir() else None)


# --- one file -----------------------------------------------------------------------------------------------------------


def header(data: bytes) -> None:
    found = Header.decode(sealing.segment_header(data))
    assert Header.decode(found.encode()) == found


def raw_header(data: bytes) -> None:
    assert Header.decode(data) == Header.decode(data[:HEADER_NBYTES])


def headers() -> Iterable[bytes]:
    yield HEADER.encode()
    yield Header((1 << 63, 3), 9, 7, 1 << 20, POINT, True).encode()


def segment(data: bytes) -> None:
    """Whole records are given in order, and where the file stops making sense is named."""

    def read(nbytes: int, offset: int) -> bytes:
        return data[offset : offset + nbytes]

    scan, end = Scan(Path("segment"), read, 0, len(data), BEGINNING), 0
    for record in scan:
        assert record.offset == end and check_frame(record.frame) == record.prefix
        end += record.prefix.nbytes
    assert end == scan.offset
    if scan.damage is None:
        assert end == len(data)
        return
    assert scan.damage.offset == end < scan.damage.resumes_at
    found = find_whole_record(read, scan.damage, len(data), (0x1234_5678_9ABC_DEF0, 0))
    assert found is None or end < found < len(data)
    raise scan.damage.error(0)


def segments() -> Iterable[bytes]:
    owner = Owner()
    yield b"".join([*owner.opening(), owner.put(), owner.note(), owner.put(b"x" * 100), *owner.opening(), owner.put()])


def index(data: bytes) -> None:
    """An index that does not fit is made anew: it never raises."""
    found = Index.decode(data, 1, 1000)
    if found is not None:
        assert found.encode(1, 1000) == data
        found.find(0)
        found.find((1 << 64) - 1)


def indices() -> Iterable[bytes]:
    yield Index([Entry(HEADER_NBYTES, BEGINNING)]).encode(1, 1000)
    yield Index([Entry(HEADER_NBYTES, BEGINNING), Entry(500, POINT)]).encode(1, 1000)


def end(data: bytes) -> None:
    """How far a partition was durable. An owner goes on from it, or records it anew."""
    for content in (data, sealing.slots(data, 5)):
        with folder() as name:
            Path(name, EndFile.NAME).write_bytes(content)
            with closing(EndFile(Disk(), Path(name), write=True)) as ends:
                found = ends.read() or End(1, 64, 0, 0)
                ends.record(found)
                assert ends.read() == found


def ends() -> Iterable[bytes]:
    with folder() as name:
        EndFile.make(Disk(), Path(name), End(1, 64, 5 << 28, 77))
        yield Path(name, EndFile.NAME).read_bytes()


def failures(data: bytes) -> None:
    """How many writes have failed: an owner and a reader refuse the same."""
    for content in (sealing.slots(data, 1), data):
        with folder() as name:
            Path(name, FailureCount.NAME).write_bytes(content)
            check_failures(Disk(), Path(name))
            with closing(FailureCount(Disk(), Path(name))) as counted:
                before = counted.count
                counted.raise_by_one()
                assert counted.count == before + 1


def failure_counts() -> Iterable[bytes]:
    with folder() as name:
        FailureCount(Disk(), Path(name)).close()
        yield Path(name, FailureCount.NAME).read_bytes()


# --- bases, and what they hold ------------------------------------------------------------------------------------------


def base(data: bytes) -> None:
    """A base whose checksums are right: its state can be used, or it is refused."""
    position = _position_in(data)
    state = PartitionState.decode(data, position)
    again = state.encode()
    assert PartitionState.decode(again, position).encode() == again
    look_at(state)
    for frame in wire.frames():
        event = decode_event(frame)
        if event.kind not in (Kind.CLAIM, Kind.BASE):
            state.apply(event)
    state.forget(position)
    state.encode()


def _position_in(data: bytes) -> int:
    try:
        found = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return 0
    return found[0] if isinstance(found, list) and found and isinstance(found[0], int) else 0


def look_at(state: PartitionState) -> None:
    """Everything that a broker asks of a state."""
    dense = state.dense
    dense.versions(8, state.start, contexts=True)
    dense.newest(1 << 62)
    dense.lineage()
    dense.open_from()
    for session in state.sessions.values():
        session.last_event()
    for frame in wire.frames():
        payload = decode_event(frame).payload
        if isinstance(payload, Commit):
            dense.sealed_before(payload)
            for rewind in (False, True):
                try:
                    dense.prepare(payload.version, payload.parts, payload.schema, rewind)
                except CorruptLog:
                    raise
                except ParamstreamError:
                    # As a producer would be told.
                    pass


def bases() -> Iterable[bytes]:
    roles: tuple[Role, ...] = "state", "weights"
    for role in roles:
        session = Session(start(role=role))
        session.join()
        for payload, bulk in wire.whole_payloads():
            session.send(session.frame(payload, [bulk]))
        yield session.core.state.encode()
    yield from (msgspec.msgpack.encode(example) for example in examples_of(PartitionState))


def meta(data: bytes) -> None:
    """Entries of `__meta`: pieces are key and value in turn."""
    pieces = split(data)
    look_at_meta(MetaState(dict(zip(pieces[::2], pieces[1::2], strict=False)), epoch=3))


def look_at_meta(found: MetaState) -> None:
    for topic in found.topics():
        found.topic(topic.name)
    found.topic_by_id(TOPIC)
    found.tables(TOPIC)
    for keeper in found.keepers(TOPIC):
        found.snapshots(TOPIC, keeper)
    found.producer_incarnation("name")
    found.replica_incarnation("name")
    found.open_producer("name")


def meta_entries() -> Iterator[tuple[bytes, bytes]]:
    encode = msgspec.msgpack.encode
    yield b"topic/model", encode(TopicRecord("model", TOPIC, 1, "write_back", 8))
    yield b"table/%016x/table" % TOPIC, encode(examples_of(Table)[0])
    yield b"producer/name", encode(7)
    yield b"replica/name", encode(8)
    yield b"counter/incarnation", encode(9)
    yield b"snapshot/%016x/keeper" % TOPIC, encode(examples_of(tuple[AnnouncedSnapshot, ...])[0])


def metas() -> Iterable[bytes]:
    pieces = [piece for entry in meta_entries() for piece in entry]
    yield joined(pieces)
    yield from (joined(pieces[at : at + 2]) for at in range(0, len(pieces), 2))


def names(data: bytes) -> None:
    """Names of what lies in a log's folder."""
    text = data.decode(errors="surrogateescape").split("\n")
    for topic, number in held_partitions(text):
        assert topic >= 0 and number >= 0


TARGETS = (
    Target("segment-header", header, headers),
    Target("segment-header-raw", raw_header, headers),
    Target("segment", segment, segments),
    Target("segment-index", index, indices),
    Target("log-end", end, ends),
    Target("log-failures", failures, failure_counts),
    Target("base", base, bases),
    Target("meta", meta, metas, errors=(CorruptLog, UnknownTopic)),
    Target("log-names", names, lambda: [b"meta\nlock\n0000000000000007-0\n00000001.segment"]),
)
