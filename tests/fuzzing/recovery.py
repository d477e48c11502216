"""Whole folders of a log: whoever opens them, takes a partition over or restores from them gets what is right, or hears what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import paramstream as ps
from cores.partitions import CLOCK_S, put
from fuzzing import peers, sealing, wire
from fuzzing.examples import joined, split
from fuzzing.log import TOPIC, folder, look_at, look_at_meta, meta_entries
from fuzzing.target import Target
from paramstream.brokers.checks import Role
from paramstream.brokers.effects import Append
from paramstream.brokers.partition import PartitionCore, PartitionSettings
from paramstream.brokers.registry import topics_in, versions_in
from paramstream.consistency.vector import PartitionId
from paramstream.errors import CorruptLog, ParamstreamError, UnknownTopic
from paramstream.eventlog.local import LocalLog, partition_folder
from paramstream.eventlog.reading import FolderReader
from paramstream.eventlog.verifying import verify_log
from paramstream.events.codec import Head, decode_event, encode_event, position_of, stamp_frame
from paramstream.events.kinds import Kind
from records.frames import Owner, append_all

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
    look_at(core.state)
    if role == "meta":
        look_at_meta(core.meta)


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


TARGETS = (
    Target("log-folder", log_folder, log_folders, fixed_bytes=4 << 20, examples=15),
    Target("takeover", takeover, takeovers, errors=(CorruptLog, UnknownTopic), fixed_bytes=2 << 20),
    Target("restored-log", restored, peers.replica_seeds, errors=(ParamstreamError,), fixed_bytes=16 << 20, examples=5),
)
