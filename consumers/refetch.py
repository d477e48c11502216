"""What a replica no longer has, or not whole, from the log of a running broker: a version put together once more, or a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from ..consistency.vector import VersionVector
from ..errors import CorruptLog, InvalidEvent, LogTruncated
from ..events.codec import EventFrame, decode_event
from ..events.kinds import Chunk, Commit, Part, Put
from ..events.validate import check_payload, put_values
from ..tiers.store import TieredStore
from ..transport.calls import TopicRecord, VersionRecord
from .followed import Held
from .links import MakeLink
from .pages import Pager
from .versions import Missing, Sealed, Versions


def refetch(
    make_link: MakeLink,
    store: TieredStore,
    topic: TopicRecord,
    wanted: VersionRecord,
    newest: Sealed | None,
    patience: Callable[[], float],
) -> Sealed:
    """The version that its owner describes by `wanted`, every digest proved. The caller has the one reference to it.

    Works in the calling thread, over a link of its own. `newest` gives the ties that the version left out, where its schema is
    that one's. Needs room for the version in `store`, and uses more where there is some. `patience` says how long the next
    answer may take, in seconds.
    Raises `LogTruncated` where the log no longer has all of it, `StorageFull`, `CorruptLog`, `ConnectFailed`,
    `ParamstreamTimeout`.
    """
    with closing(Pager(make_link, "refetch", patience)) as pager:
        events = _Events(pager, topic, wanted)
        return _assemble(events, store, newest)


def refetch_value(
    make_link: MakeLink,
    topic: TopicRecord,
    number: int,
    key: bytes,
    position: int,
    patience: Callable[[], float],
) -> bytes:
    """What the event at `position` of a state partition put under `key`. As `refetch`, without a store.

    Raises `LogTruncated` where the log no longer has that event, `CorruptLog`, `ConnectFailed`, `ParamstreamTimeout`.
    """
    with closing(Pager(make_link, "refetch", patience)) as pager:
        for data in pager.frames((topic.id, number), position - 1, position):
            frame = decode_event(data)
            if frame.position == position and isinstance(frame.payload, Put):
                try:
                    check_payload(frame.payload, len(frame.bulk))
                except InvalidEvent as error:
                    raise CorruptLog(error.problem, topic=topic.name, position=position) from error
                # Of several values for one key the last one stands.
                found = [bytes(value) for item, value in put_values(frame.payload, frame.bulk) if item.key == key]
                if found:
                    return found[-1]
    raise LogTruncated(
        "the log no longer has the event that wrote the value", topic=topic.name, partition=number, position=position
    )


class _Events:
    """The chunks, parts and the commit of one version, in the log."""

    def __init__(self, pager: Pager, topic: TopicRecord, wanted: VersionRecord) -> None:
        self._pager = pager
        self._partition = topic.id, topic.partitions
        self.topic = topic.name
        self.wanted = wanted

    def after(self, after: int) -> Iterator[EventFrame]:
        """Those behind `after`, up to the commit."""
        for data in self._pager.frames(self._partition, after, self.wanted.position):
            frame = decode_event(data)
            if isinstance(frame.payload, Chunk | Part | Commit) and frame.payload.version == self.wanted.version:
                try:
                    check_payload(frame.payload, len(frame.bulk))
                except InvalidEvent as error:
                    raise CorruptLog(error.problem, topic=self.topic, position=frame.position) from error
                yield frame

    def truncated(self) -> LogTruncated:
        return LogTruncated(
            "the log no longer has all of the version",
            topic=self.topic,
            version=self.wanted.version,
            position=self.wanted.position,
        )


def _assemble(events: _Events, store: TieredStore, newest: Sealed | None) -> Sealed:
    commit, parts = None, list[Part]()
    versions = Versions(store, 1)
    try:
        for frame in events.after(events.wanted.first - 1):
            match frame.payload:
                case Chunk():
                    versions.staging.stage_chunk(frame)
                case Part() as part:
                    versions.staging.stage_part(frame)
                    parts.append(part)
                case _ if frame.position == events.wanted.position:
                    commit = frame
                case _:
                    pass
        if commit is None:
            raise events.truncated()
        versions.like = newest if _same_schema(parts, newest) else None
        try:
            assembly = versions.prepare(commit)
        except Missing as missing:
            # There was no room to stage all of it: what lacks goes straight into its place now.
            for frame in events.after(max(missing.after, events.wanted.first - 1)):
                if not isinstance(frame.payload, Commit):
                    versions.refetched(frame)
            assembly = versions.prepare(commit)
        held = Held(commit, 0)
        seen: VersionVector[int] = held.stamp.dependencies().merge({commit.partition_id: commit.position})
        return versions.finish(assembly, seen)
    except Missing:
        raise events.truncated() from None
    finally:
        versions.clear()


def _same_schema(parts: Sequence[Part], newest: Sealed | None) -> bool:
    """All that the parts list is listed alike in `newest`."""
    if newest is None:
        return False
    specs = (spec for part in parts for spec in part.tensors)
    return all(
        (held := newest.specs.get(spec.name)) is not None and (held.dtype, held.shape) == (spec.dtype, spec.shape)
        for spec in specs
    )
