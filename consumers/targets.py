"""Where a restore ends: which version is served at a moment, and which part of the log makes up the state beside it.

A moment is a version, a vector or a time. What is not closed is lowered to the greatest closed cut at or below it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import cast

from ..consistency.position import START, offset_of, show
from ..consistency.vector import VersionVector, check_named
from ..errors import CorruptLog, InvalidEvent, LogTruncated, VersionNotHeld
from ..events.codec import EventFrame, decode_event, decode_vector
from ..events.kinds import Commit, Part, PartRef
from ..events.limits import check_version
from ..transport.calls import TopicRecord, VersionRecord
from .followed import Held
from .playback import MAX_POSITION, Cut
from .sources import Source
from .subscription_core import FETCH_BYTES
from .times import last_ns_of

Moment = int | VersionVector[str] | datetime | None

ONE_EVENT = 1
"""Bytes of a read that is to give one event."""

MAX_PARTS = 16
"""Of a version whose parts are looked for before it is restored."""


def cuts_at(source: Source, at: Moment, dense_only: bool) -> Iterator[Cut]:
    """What of the log to apply, and the version to serve in the end: the first of these cuts that proves to be closed.

    Raises `VersionNotHeld`, `LogTruncated` where the log lacks something of it, `InvalidEvent` for what is no moment.
    """
    record = source.record
    if not isinstance(cast(object, at), int | VersionVector | datetime | None):
        raise InvalidEvent(
            f"at={at!r} is no moment",
            topic=record.name,
            remedy="Give a version, a VersionVector or a datetime, or None",
        )
    if isinstance(at, VersionVector):
        check_named(at)
    if isinstance(at, int):
        version = _sealed_as(source, check_version(at))
        closed = closed_cut(source, version)
        until = {number: closed.get((record.id, number), START) for number in _numbers(record)}
        yield Cut(_starts(source, version), until, version, grows=True)
        return
    until = _bounds(source, at, dense_only)
    for each in versions_within(source, until, range(0 if dense_only else record.partitions)):
        yield Cut(_starts(source, each), until, each)


def newest_within(source: Source, until: Mapping[int, int], numbers: Collection[int]) -> VersionRecord | None:
    """The first of `versions_within`."""
    return next(versions_within(source, until, numbers))


def versions_within(
    source: Source, until: Mapping[int, int], numbers: Collection[int]
) -> Iterator[VersionRecord | None]:
    """Versions of which all that they and the events before them rest on, in the state partitions `numbers`, lies within `until`
    (partition number → last position): the one sealed last first, and None behind the oldest where there was none before it.

    What *that* rests on may yet lie outside. Raises `LogTruncated` where the log no longer has all of the next one.
    """
    record, known = source.record, source.versions()
    for version in reversed(known):
        if version.position > until.get(record.partitions, START):
            continue
        rests_on = closed_cut(source, version)
        if all(
            at <= until.get(number, START) and _reaches(source, number, at)
            for (topic, number), at in rests_on.items()
            if topic == record.id and number in numbers
        ):
            _check_whole(source, version)
            yield version
    start = source.start(record.partitions)
    if known and START < start:
        # What was sealed before went with the log's beginning.
        raise LogTruncated(
            f"the log's weights start behind {show(start)}",
            topic=record.name,
            partition=record.partitions,
            position=until.get(record.partitions, START),
            remedy=_oldest(source),
        )
    yield None


def closed_cut(source: Source, version: VersionRecord) -> VersionVector[int]:
    """All that the version's commit and the events before it depend on, and itself. What the events in other partitions up to
    there depend on may be more: of other producers too.
    """
    record = source.record
    weights = record.id, record.partitions
    frame = _commit_of(source, version)
    rests_on = Held(frame, 0).stamp.dependencies().merge(decode_vector(source.context(version)))
    return rests_on.merge({weights: version.position})


def tensors_of(source: Source, version: VersionRecord) -> dict[str, int]:
    """Name → bytes of the version's tensors, those tied to others left out; none where its parts do not stand directly before its
    commit, as those of a single publisher do.
    """
    weights = source.record.id, source.record.partitions
    commit = _commit_of(source, version).payload
    assert isinstance(commit, Commit)
    named = set(commit.parts)
    if not 0 < len(named) <= MAX_PARTS or offset_of(version.position) <= len(named):
        return {}
    sizes = dict[str, int]()
    for data in source.read(weights, version.position - 1 - len(named), FETCH_BYTES):
        frame = decode_event(data)
        if frame.position >= version.position or not isinstance(frame.payload, Part):
            break
        named.discard(PartRef(frame.head.producer, frame.head.incarnation, frame.head.sequence))
        sizes |= {spec.name: spec.nbytes for spec in frame.payload.tensors if not spec.tied_to}
    return {} if named else sizes


def _commit_of(source: Source, version: VersionRecord) -> EventFrame:
    frames = source.read((source.record.id, source.record.partitions), version.position - 1, ONE_EVENT)
    frame = decode_event(frames[0]) if frames else None
    if frame is None or frame.position != version.position or not isinstance(frame.payload, Commit):
        raise CorruptLog(
            "the log has no commit where it was sealed",
            topic=source.record.name,
            version=version.version,
            position=version.position,
        )
    return frame


def _sealed_as(source: Source, number: int) -> VersionRecord:
    """The version sealed last under that number, where the log has all of it."""
    known = source.versions()
    sealed = [version for version in known if version.version == number]
    standing = next((version for version in sealed if not version.superseded), None)
    if standing is not None:
        _check_whole(source, standing)
        return standing
    numbers = [str(version.version) for version in known if not version.superseded]
    remedy = f"There are: {', '.join(sorted(numbers, key=int)) or 'none'}"
    if sealed:
        at = VersionVector({(source.record.name, source.record.partitions): sealed[-1].position})
        remedy += f". A rewind superseded this one, which is reached by a vector that holds its commit at {at}"
    raise VersionNotHeld("the log has no such version", topic=source.record.name, version=number, remedy=remedy)


def _check_whole(source: Source, version: VersionRecord) -> None:
    start = source.start(source.record.partitions)
    if version.first <= start:
        raise LogTruncated(
            f"the log no longer has all of the version: it starts behind {show(start)}, the version at {show(version.first)}",
            topic=source.record.name,
            partition=source.record.partitions,
            position=version.position,
            version=version.version,
            remedy=_oldest(source),
        )


def _oldest(source: Source) -> str:
    start = source.start(source.record.partitions)
    whole = next((version for version in source.versions() if version.first > start), None)
    if whole is None:
        return "The log has no whole version"
    return f"The oldest whole version is {whole.version}, committed at {show(whole.position)}"


def _reaches(source: Source, number: int, position: int) -> bool:
    """Whether the source has the partition up to there: it may end before what another one's event rests on."""
    if position <= source.start(number):
        return True
    return bool(source.read((source.record.id, number), position - 1, ONE_EVENT))


def _bounds(source: Source, at: VersionVector[str] | datetime | None, dense_only: bool) -> dict[int, int]:
    """The last position of each partition that lies at or before the moment."""
    numbers = _numbers(source.record)
    if isinstance(at, VersionVector):
        return {number: at.get((source.record.name, number), START) for number in numbers}
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidEvent(f"{at} names no time zone", remedy="Give one, for example datetime.now(timezone.utc)")
        first = source.record.partitions if dense_only else 0
        moment_ns = last_ns_of(at)
        return {number: _last_before(source, number, moment_ns) for number in numbers if number >= first}
    return dict.fromkeys(numbers, MAX_POSITION)


def _last_before(source: Source, number: int, moment_ns: int) -> int:
    """The position of the partition's last event sequenced at or before a time: its log's start if there is none.

    Times never go back along a partition, so halving the range of positions finds it.
    """
    last, end = source.start(number), MAX_POSITION
    while last < end:
        middle = (last + end) // 2
        frames = source.read((source.record.id, number), middle, ONE_EVENT)
        frame = decode_event(frames[0]) if frames else None
        if frame is not None and frame.time <= moment_ns:
            last = frame.position
        else:
            end = middle
    return last


def _numbers(record: TopicRecord) -> range:
    return range(record.partitions + 1)


def _starts(source: Source, version: VersionRecord | None) -> dict[int, int]:
    """State from its beginning; weights from the version's first event, so that other versions cost nothing."""
    starts = {number: source.start(number) for number in _numbers(source.record)}
    if version is not None:
        starts[source.record.partitions] = version.first - 1
    return starts
