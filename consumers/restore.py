"""Point-in-time restore: the state of a topic at a version, a vector or a time, from a log's folder or a broker.

    with ps.restore("file:/var/lib/paramstream", "model", at=1200) as rep:
        rep.weights()["layer.weight"]

What comes back is a `Replica` that follows nothing: it stays at that state.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from ..consistency.gate import Ordering
from ..consistency.position import START
from ..consistency.vector import EMPTY, VersionVector
from ..errors import InvalidEvent, LogTruncated, NotDurable, ParamstreamError, VersionNotHeld
from ..eventlog.open import folder_of
from ..eventlog.reading import FolderReader
from ..events.arrays import ArrayKind
from ..events.codec import EventFrame, decode_vector
from ..events.kinds import Chunk, Commit, Part
from ..events.limits import check_version
from ..tiers.store import TieredStore
from ..transport.calls import TopicRecord
from ..transport.directory import Directory
from .playback import MAX_POSITION, Cut, Playback
from .replica import Replica
from .sources import BrokerSource, FolderSource, Progress, Source, frames_of, named

ANSWER_S = 30.0
"""How long a broker may take for each answer."""

Moment = int | VersionVector[str] | datetime | None
TopicsIn = Callable[[FolderReader], list[TopicRecord]]
"""Reads the topics that a log's folder knows: its registry is kept by brokers, which this room does not know."""


@dataclass(frozen=True, slots=True)
class SealedAt:
    """A commit in a log, and the first event that its version is made from."""

    frame: EventFrame
    first: int
    context: VersionVector[int] = EMPTY
    """What the events of the partition before it rest on: of other producers too, whose parts it does not name."""

    @property
    def commit(self) -> Commit:
        assert isinstance(self.frame.payload, Commit)
        return self.frame.payload

    def closed_cut(self) -> VersionVector[int]:
        """All that the commit and the events before it depend on, and itself."""
        stamp = self.frame.stamp()
        rests_on = self.context.merge(stamp.dependencies()).merge(decode_vector(self.commit.needs))
        return rests_on.merge({self.frame.partition_id: self.frame.position})


def restore(
    source: str,
    topic: str,
    at: Moment = None,
    store: TieredStore | None = None,
    dense_only: bool = False,
    *,
    topics_in: TopicsIn,
    arrays: ArrayKind | None = None,
    progress: Progress = lambda nbytes: None,
) -> Replica:
    """The state of `topic` at a moment, as a replica that follows nothing. Only what is durable counts.

    `source` is "file:DIR", the folder of a local log (its broker may be running), or the endpoint of a broker. `at` is a
    version (the weights sealed last under that number, rows and KV at the closed cut of its commit), a vector or a time
    with a zone (the greatest closed state at or before it), or None for the head. `dense_only` leaves rows and KV out.
    `store` is left open when the replica is closed. `progress` is told of bytes as they are applied.

    Blocks until everything is applied. Raises `UnknownTopic`, `VersionNotHeld` where the log has no such version,
    `LogTruncated` where it no longer reaches back, `NotDurable` for a topic with persistence "none", `CorruptLog`,
    `StorageFull`, `ConnectFailed`.
    """
    with closing(_open(source, topic, topics_in)) as opened:
        record = opened.record
        if record.persistence == "none":
            raise NotDurable('nothing of a topic with persistence "none" can be restored', topic=topic)
        _check_start(opened, dense_only)
        sealed, cut = _find(opened, at, dense_only)
        playback = Playback(opened, cut, progress)
        replica = Replica(
            [topic],
            directory=Directory(playback.ask),
            make_link=playback.make_link,
            name="restored",
            ordering=Ordering.CAUSAL,
            store=store,
            keep_versions=1,
            partitions=[] if dense_only else None,
            arrays=arrays,
        )
    try:
        _check(replica, topic, sealed)
    except BaseException:
        replica.close()
        raise
    return replica


def _open(url: str, topic: str, topics_in: TopicsIn) -> Source:
    if url.startswith(("tcp://", "ipc://")):
        return BrokerSource(url, topic, ANSWER_S)
    if not url.startswith("file:"):
        raise InvalidEvent(
            f"nothing can be restored from {url!r}", item=url, remedy='Give "file:DIR", or a broker as tcp://HOST:PORT'
        )
    reader = FolderReader(folder_of(url))
    try:
        return FolderSource(reader, named(topics_in(reader), topic))
    except BaseException:
        reader.close()
        raise


def _check_start(source: Source, dense_only: bool) -> None:
    if dense_only:
        return
    for number in range(source.record.partitions):
        if source.start(number) > START:
            raise LogTruncated(
                "rows and KV of this topic no longer reach back to its beginning",
                topic=source.record.name,
                partition=number,
                position=source.start(number),
                remedy="Restore the weights alone with dense_only=True",
            )


def _find(source: Source, at: Moment, dense_only: bool) -> tuple[SealedAt | None, Cut]:
    """The version to serve, None where there is none yet, and what of the log to apply."""
    record = source.record
    if not isinstance(cast(object, at), int | VersionVector | datetime | None):
        raise InvalidEvent(
            f"at={at!r} is no moment",
            topic=record.name,
            remedy="Give a version, a VersionVector or a datetime, or None",
        )
    if isinstance(at, int):
        sealed = _sealed_as(source, check_version(at))
        return sealed, Cut(_starts(source, sealed), _until(record, sealed.closed_cut()))
    until = _bounds(source, at)
    bounds = VersionVector({(record.id, number): position for number, position in until.items()})
    # What is not closed is lowered to what is: a commit counts if all that it depends on lies within the bounds.
    standing = [
        sealed
        for sealed in _sealed(source, until[record.partitions]).values()
        if _followed(record, sealed.closed_cut(), dense_only) <= bounds
    ]
    newest = max(standing, key=lambda sealed: sealed.frame.position, default=None)
    return newest, Cut(_starts(source, newest), until)


def _sealed_as(source: Source, version: int) -> SealedAt:
    """The version sealed last under that number. Raises `VersionNotHeld` that names those there are."""
    found = _sealed(source, MAX_POSITION)
    if version not in found:
        held = ", ".join(str(each) for each in sorted(found)) or "none"
        raise VersionNotHeld(
            "the log has no such version", topic=source.record.name, version=version, remedy=f"There are: {held}"
        )
    return found[version]


def _bounds(source: Source, at: VersionVector[str] | datetime | None) -> dict[int, int]:
    """The last position of each partition that lies at or before the moment."""
    record = source.record
    numbers = range(record.partitions + 1)
    if isinstance(at, VersionVector):
        return {number: at.get((record.name, number), START) for number in numbers}
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidEvent(f"{at} names no time zone", remedy="Give one, for example datetime.now(timezone.utc)")
        moment_ns = int(at.timestamp() * 1e9)
        return {
            number: max(
                (frame.position for frame in frames_of(source, number) if frame.time <= moment_ns), default=START
            )
            for number in numbers
        }
    return dict.fromkeys(numbers, MAX_POSITION)


def _until(record: TopicRecord, closed: VersionVector[int]) -> dict[int, int]:
    return {number: closed.get((record.id, number), START) for number in range(record.partitions + 1)}


def _followed(record: TopicRecord, vector: VersionVector[int], dense_only: bool) -> VersionVector[int]:
    """The vector's entries of the partitions that are restored: nothing waits for others."""
    first = record.partitions if dense_only else 0
    return VersionVector(
        {(topic, number): at for (topic, number), at in vector.items() if topic == record.id and number >= first}
    )


def _starts(source: Source, sealed: SealedAt | None) -> dict[int, int]:
    """State from its beginning; weights from the version's first event, so that older versions cost nothing."""
    starts = {number: source.start(number) for number in range(source.record.partitions + 1)}
    if sealed is not None:
        starts[source.record.partitions] = sealed.first - 1
    return starts


def _sealed(source: Source, until: int) -> dict[int, SealedAt]:
    """The versions that stand at position `until` of the weight partition; what a rewind superseded is left out."""
    frames = frames_of(source, source.record.partitions)
    return sealed_in(itertools.takewhile(lambda frame: frame.position <= until, frames))


def sealed_in(frames: Iterable[EventFrame]) -> dict[int, SealedAt]:
    """The versions that the events of a weight partition seal, in order of their commits."""
    first: dict[int, int] = {}
    found: dict[int, SealedAt] = {}
    context, seen = EMPTY, (b"", b"")
    for frame in frames:
        if (frame.head.own, frame.head.observed) != seen:
            seen = frame.head.own, frame.head.observed
            context = context.merge(frame.stamp().dependencies())
        match frame.payload:
            case Chunk(version=version) | Part(version=version):
                first.setdefault(version, frame.position)
            case Commit() as commit:
                if commit.rewind:
                    found = {version: sealed for version, sealed in found.items() if version <= commit.version}
                found.pop(commit.version, None)
                found[commit.version] = SealedAt(frame, first.get(commit.version, frame.position), context)
                # A part ends by a commit of its version or a higher one, or a rewind.
                kept = {} if commit.rewind else {v: at for v, at in first.items() if v > commit.version}
                first = kept
            case _:
                pass
    return found


def _check(replica: Replica, topic: str, sealed: SealedAt | None) -> None:
    """All that was to be served is."""
    status = replica.status()
    for error in status.stopped.values():
        raise error
    served = status.served.get(topic)
    if sealed is not None and (served is None or served.position != sealed.frame.position):
        raise ParamstreamError(
            "the version could not be put together: its commit depends on what lies outside of the log",
            topic=topic,
            position=sealed.frame.position,
            version=sealed.commit.version,
        )
