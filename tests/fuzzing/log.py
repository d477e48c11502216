"""What a log's folder holds: segments, their indices, the small files beside them, bases, and what `__meta` says of topics."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

import paramstream as ps
from cores.partitions import CLOCK_S, Session, put, start
from fuzzing import peers, sealing, wire
from fuzzing.examples import examples_of, joined, split
from fuzzing.target import Target
from paramstream.brokers.checks import Role
from paramstream.brokers.effects import Append
from paramstream.brokers.meta import MetaState
from paramstream.brokers.partition import PartitionCore, PartitionSettings
from paramstream.brokers.registry import topics_in, versions_in
from paramstream.brokers.state import PartitionState
from paramstream.consistency.vector import PartitionId
from paramstream.errors import CorruptLog, ParamstreamError, UnknownTopic
from paramstream.eventlog.counting import BEGINNING, Point
from paramstream.eventlog.files import Disk
from paramstream.eventlog.index import Entry, Index
from paramstream.eventlog.local import LocalLog, held_partitions, partition_folder
from paramstream.eventlog.marks import End, EndFile, FailureCount, check_failures
from paramstream.eventlog.reading import FolderReader
from paramstream.eventlog.segment import HEADER_NBYTES, Header, Scan, find_whole_record
from paramstream.eventlog.verifying import verify_log
from paramstream.events.codec import Head, check_frame, decode_event, encode_event, position_of, stamp_frame
from paramstream.events.kinds import Commit, Kind, Table
from paramstream.transport.calls import AnnouncedSnapshot, TopicRecord
from records.frames import Owner, append_all

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


# --- a whole folder -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """A log with one partition, as an owner left it."""

    partition: PartitionId
    files: dict[str, bytes]
    """Of the partition's folder."""

    @classmethod
    @cache
    def make(cls, partition: PartitionId = (TOPIC, 0)) -> Written:
        with folder() as name:
            with closing(LocalLog(Path(name), 1 << 20)) as log:
                log.create_topic(TOPIC, "model", 1)
                opened, owner = log.open(partition), Owner(partition)
                opened.recover()
                append_all(
                    opened, [*owner.opening(), owner.put(), owner.put(b"x" * 70_000), owner.base(), owner.note()]
                )
                opened.sync()
            held = partition_folder(Path(name), partition)
            return cls(partition, {file.name: file.read_bytes() for file in sorted(held.iterdir())})


def log_folder(data: bytes) -> None:
    """A log some of whose files are not what was written: its owner opens it, or says what is damaged and changes nothing; readers too.

    The first byte of each piece says which file it is.
    """
    written = Written.make()
    names = sorted(written.files)
    files = written.files | {names[piece[0] % len(names)]: piece[1:] for piece in split(data, 4) if piece}
    with folder() as name:
        place = Path(name)
        with closing(LocalLog(place, 1 << 20)) as log:
            log.create_topic(TOPIC, "model", 1)
        held = partition_folder(place, written.partition)
        held.mkdir(exist_ok=True)
        for file, content in files.items():
            (held / file).write_bytes(content)
        for check in verify_log(place):
            str(check)
        with FolderReader(place) as reader:
            _read_all(reader, written.partition)
        with closing(LocalLog(place, 1 << 20)) as log:
            opened = log.open(written.partition)
            recovered = opened.recover()
            kept = [record.position for record in recovered.records]
            batch = [position_of(frame) for frame in opened.read(opened.start, 1 << 20).frames]
            assert kept == sorted(set(kept)) and batch == sorted(set(batch))


def _read_all(reader: FolderReader, partition: PartitionId) -> None:
    try:
        read = reader.read(partition)
        at = [record.position for record in read.records]
        if at:
            list(reader.read(partition, at[0]).records)
        list(reader.read_newest(partition).records)
    except ParamstreamError:
        # An owner may still be able to open it: what was never durable is cut.
        pass


def log_folders() -> Iterator[bytes]:
    written = Written.make()
    for number, name in enumerate(sorted(written.files)):
        yield joined([bytes([number]) + written.files[name][:2000]])


# --- what an owner reads back -------------------------------------------------------------------------------------------


def takeover(data: bytes) -> None:
    """Records that are whole, and count, and say anything: the next owner takes the partition over, or it stands still.

    The first byte says what the partition is for. Each piece is a record.
    """
    role: Role = {b"m": "meta", b"w": "weights"}.get(data[:1], "state")  # type: ignore[assignment]
    partition = {"meta": (0, 0), "weights": (TOPIC, 1)}.get(role, (TOPIC, 0))
    with folder() as name, closing(LocalLog(Path(name), 1 << 20)) as log:
        log.create_topic(TOPIC, "model", 2)
        log.create_topic(0, "__meta", 1)
        log.open(partition).recover()
        owner = Owner(partition)
        append_all(log.open(partition), owner.opening()[:2])
        for piece in split(data[1:], 12):
            log.open(partition).append(_next_record(owner, piece))
        log.open(partition).sync()
        log.close()
        with closing(LocalLog(Path(name), 1 << 20)) as again:
            _take_over(again, partition, role)
        with FolderReader(Path(name)) as reader:
            for topic in topics_in(reader):
                if topic.partitions < 100:
                    versions_in(reader, topic)


def _next_record(owner: Owner, piece: bytes) -> bytearray:
    event = decode_event(sealing.frame(piece))
    if event.kind in (Kind.CLAIM, Kind.EPOCH, Kind.BASE):
        raise CorruptLog("those are another target's")
    made = encode_event(owner.partition, event.head, event.payload, [event.bulk])
    owner.at += 1
    stamp_frame(made, position=owner.at, time=event.time, nonce=owner.nonce)
    return made


def _take_over(log: LocalLog, partition: PartitionId, role: Role) -> None:
    opened = log.open(partition)
    recovered = opened.recover()
    core = PartitionCore(partition, PartitionSettings(role, "write_back", 8, "model"))
    core.recover(recovered.base, recovered.records)
    core.reread(opened.claim(core.claim(recovered.last_claim, CLOCK_S, 5, "broker")))
    for effect in core.open(10**18, 10**12, "boot", 0):
        if isinstance(effect, Append):
            opened.append(effect.frame)
    opened.sync()
    _look_at(core.state)
    if role == "meta":
        _look_at_meta(core.meta)


def takeovers() -> Iterable[bytes]:
    kinds = {decode_event(frame).kind.label: frame for frame in wire.frames()}
    yield b"s" + joined([kinds["put"], kinds["delete"], kinds["table"], kinds["rows"], kinds["note"]])
    yield b"w" + joined([kinds["chunk"], kinds["part"], kinds["commit"]])
    for key, value in meta_entries():
        made = encode_event((0, 0), Head("", 0, 0), *put(key, value))
        yield b"m" + joined([bytes(made)])


def restored(data: bytes) -> None:
    """A log of one topic whose records are whole, and count, and say anything: it is restored, or refused.

    Pieces: a record each; the first byte says whether it is one of the weights' partition.
    """
    with folder() as name:
        with closing(LocalLog(Path(name), 1 << 20)) as log:
            owners = {partition: Owner(partition) for partition in ((0, 0), (TOPIC, 0), (TOPIC, 1))}
            log.create_topic(0, "__meta", 1)
            log.create_topic(TOPIC, "model", 2)
            for partition, owner in owners.items():
                log.open(partition).recover()
                append_all(log.open(partition), owner.opening()[:2])
            told = dict(meta_entries())[b"topic/model"]
            made = encode_event((0, 0), Head("", 0, 0), *put(b"topic/model", told))
            log.open((0, 0)).append(_next_record(owners[0, 0], bytes(made)))
            for piece in split(data, 8):
                partition = TOPIC, int(piece[:1] == b"w")
                log.open(partition).append(_next_record(owners[partition], piece[1:]))
            for partition in owners:
                log.open(partition).sync()
        with ps.TieredStore(dram="1MiB") as store, ps.restore(f"file:{name}", "model", store=store) as replica:
            replica.get("key")
            if replica.status().served:
                for value in replica.weights().values():
                    assert value.nbytes >= 0
            replica.digest()


def base(data: bytes) -> None:
    """A base whose checksums are right: its state can be used, or it is refused."""
    position = _position_in(data)
    state = PartitionState.decode(data, position)
    again = state.encode()
    assert PartitionState.decode(again, position).encode() == again
    _look_at(state)
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


def _look_at(state: PartitionState) -> None:
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
    _look_at_meta(MetaState(dict(zip(pieces[::2], pieces[1::2], strict=False)), epoch=3))


def _look_at_meta(found: MetaState) -> None:
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
    Target("log-folder", log_folder, log_folders, fixed_bytes=4 << 20, examples=15),
    Target("takeover", takeover, takeovers, errors=(CorruptLog, UnknownTopic), fixed_bytes=2 << 20),
    Target("restored-log", restored, peers.replica_seeds, errors=(ParamstreamError,), fixed_bytes=16 << 20, examples=5),
    Target("base", base, bases),
    Target("meta", meta, metas, errors=(CorruptLog, UnknownTopic)),
    Target("log-names", names, lambda: [b"meta\nlock\n0000000000000007-0\n00000001.segment"]),
)
