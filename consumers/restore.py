"""Point-in-time restore: the state of a topic at a version, a vector or a time, from a log, a broker or a snapshot.

    with ps.restore("file:/var/lib/paramstream", "model", at=1200) as rep:
        rep.weights()["layer.weight"]

What comes back is a `Replica` that follows nothing: it stays at that state.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..consistency.gate import Ordering
from ..consistency.position import START, show
from ..consistency.vector import VersionVector
from ..errors import (
    CorruptLog,
    InvalidEvent,
    LogTruncated,
    NotDurable,
    ParamstreamError,
    ParamstreamTimeout,
    VersionNotHeld,
)
from ..eventlog.kafka.changelog import KafkaChangelogs
from ..eventlog.kafka.reading import KafkaReader
from ..eventlog.kafka.settings import KafkaLog
from ..eventlog.open import folder_of, path_of
from ..eventlog.reading import ATTEMPTS, FolderReader
from ..events.arrays import ArrayKind
from ..events.limits import check_version
from ..tiers.store import TieredStore
from ..transport.calls import TopicRecord
from ..transport.directory import Directory
from ..transport.link import Handler, Link
from ..transport.messages import Hello
from .changelog.seeding import seed_of
from .playback import Cut, Playback
from .replica import Replica
from .snapshots.choosing import check_alone, is_whole, seeds_below, snapshots_in
from .snapshots.remote import KeeperCopies
from .snapshots.seeding import Seed
from .sources import BrokerSource, LogSource, NoLog, Progress, Registry, Source
from .targets import Moment, cuts_at, tensors_of

ANSWER_S = 30.0
"""How long a broker may take for each answer."""

KEEPER_S = 600.0
"""How long the broker's keeper may take for what has left the log."""

AT_ONCE_S = 0.001
"""A replica over a playback has nothing to wait for: all there is was applied when its link has started."""

_SNAPSHOT = "snapshot:"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller of `restore` says of the replica."""

    topic: str
    store: TieredStore | None
    dense_only: bool
    arrays: ArrayKind | None
    progress: Progress


def restore(
    source: str | KafkaLog,
    topic: str,
    at: Moment = None,
    store: TieredStore | None = None,
    dense_only: bool = False,
    *,
    registry: Registry,
    snapshots: str | os.PathLike[str] | None = None,
    arrays: ArrayKind | None = None,
    progress: Progress = lambda nbytes: None,
) -> Replica:
    """The state of `topic` at a moment, as a replica that follows nothing. Only what is durable counts.

    `source` is "file:DIR", the folder of a local log (its broker may be running), "kafka://HOST:PORT" or the settings of a log in
    Kafka, the endpoint of a broker, or "snapshot:DIR", a folder of snapshots, of which one by itself is restored. `at` is a
    version (the weights sealed last under that number, rows and KV at the closed cut of its commit), a vector or a time with a
    zone (the greatest closed state at or before it), or None for the head. `dense_only` leaves rows and KV out. `snapshots` is a
    folder of snapshots to begin with where the log no longer has all of rows and KV, or of a version; without it a broker's
    keeper is asked. `store` is left open when the replica is closed. `progress` is told of bytes as they are applied.

    Blocks until everything is applied. Raises `UnknownTopic`, `VersionNotHeld` where there is no such version, `LogTruncated`
    where nothing reaches back, `NotDurable` for a topic with persistence "none", `CorruptLog`, `StorageFull`, `ConnectFailed`.
    """
    wanted = Wanted(topic, store, dense_only, arrays, progress)
    if isinstance(source, str) and source.startswith(_SNAPSHOT) and len(source) > len(_SNAPSHOT):
        return _from_snapshot(path_of(source.removeprefix(_SNAPSHOT)), None, at, wanted)
    folder = None if snapshots is None else path_of(os.fspath(snapshots))
    is_folder = isinstance(source, str) and source.startswith("file:")
    for _ in range(1, 1 if is_folder else ATTEMPTS):
        # An owner that cuts what is being read looks like damage, once; a keeper replaces snapshots. (A folder's files are opened
        # beforehand.)
        with suppress(CorruptLog, LogTruncated):
            return _restored(source, registry, at, folder, wanted)
    return _restored(source, registry, at, folder, wanted)


def _restored(source: str | KafkaLog, registry: Registry, at: Moment, folder: Path | None, wanted: Wanted) -> Replica:
    """One try."""
    topic, dense_only = wanted.topic, wanted.dense_only
    with closing(_open(source, topic, registry)) as opened:
        _check_lasts(opened.record)
        trimmed = [] if dense_only else [n for n in range(opened.record.partitions) if opened.start(n) > START]
        try:
            for cut in cuts_at(opened, at, dense_only):
                replica = (
                    _played(opened, cut, None, wanted)
                    if not trimmed
                    else _from_tail(opened, cut, trimmed, folder, wanted)
                )
                if replica is not None:
                    return replica
        except (VersionNotHeld, LogTruncated):
            if folder is None or not isinstance(at, int) or not dense_only:
                raise
            return _from_snapshot(folder, opened.record.id, at, wanted)
    raise ParamstreamError(
        "the version could not be put together: its commit depends on what lies outside of the log",
        topic=topic,
        version=at if isinstance(at, int) else None,
    )


def _check_lasts(record: TopicRecord) -> None:
    """Under "none" a log and snapshots end with the epoch."""
    if record.persistence == "none":
        raise NotDurable('nothing of a topic with persistence "none" can be restored', topic=record.name)


def _open(where: str | KafkaLog, topic: str, registry: Registry) -> Source:
    if isinstance(where, str) and where.startswith(("tcp://", "ipc://")):
        endpoints = [where]

        def make_link(handler: Handler, hello: Callable[[], Hello], name: str) -> Link:
            return Link(endpoints, handler, hello, name)

        return BrokerSource(make_link, topic, lambda: ANSWER_S)
    if isinstance(where, str) and where.startswith("kafka://"):
        where = KafkaLog.from_url(where)
    if isinstance(where, KafkaLog):
        settings = where
        return LogSource(KafkaReader(settings), topic, registry, lambda: KafkaChangelogs(settings))
    if where.startswith("file:"):
        return LogSource(FolderReader(folder_of(where)), topic, registry)
    raise InvalidEvent(
        f"nothing can be restored from {where!r}",
        item=where,
        remedy='Give "file:DIR", "kafka://HOST:PORT", "snapshot:DIR", or a broker as tcp://HOST:PORT',
    )


def _from_snapshot(folder: Path, topic_id: int | None, at: Moment, wanted: Wanted) -> Replica:
    """One snapshot, without a log: the newest that is the moment's, and whole."""
    if at is not None and not isinstance(at, int):
        raise InvalidEvent(
            "a snapshot by itself gives its own state, or its version",
            topic=wanted.topic,
            remedy="Give at=None or its version; or the log as the source, with this folder as snapshots=",
        )
    passed, damaged, unreadable = list[int](), list[CorruptLog](), list[CorruptLog]()
    for snapshot in snapshots_in(folder, wanted.topic, topic_id, unreadable):
        _check_lasts(snapshot.record)
        if at is not None and snapshot.version != check_version(at):
            passed += [] if snapshot.version is None else [snapshot.version]
            continue
        if not is_whole(snapshot, damaged):
            continue
        if not wanted.dense_only:
            check_alone(snapshot, as_of_version=at is not None)
        seed = Seed.of_snapshot(snapshot, range(0 if wanted.dense_only else snapshot.record.partitions))
        starts = {number: at for (_, number), at in seed.starts.items()}
        cut = Cut(starts, starts, seeded=starts)
        replica = _played(NoLog(snapshot.record), cut, seed, wanted)
        assert replica is not None, "a snapshot by itself has nothing to wait for"
        return replica
    if at is None:
        damaged += unreadable
    if damaged:
        raise damaged[0]
    remedy = f"The snapshots have: {', '.join(map(str, sorted(set(passed)))) or 'none'}"
    if unreadable:
        remedy += f"; damaged, so that nobody knows what they had: {', '.join(str(error.item) for error in unreadable)}"
    raise VersionNotHeld(
        "neither the log nor a snapshot has that version", topic=wanted.topic, version=at, remedy=remedy
    )


def _from_tail(source: Source, cut: Cut, trimmed: Sequence[int], folder: Path | None, wanted: Wanted) -> Replica | None:
    """Rows and KV of a snapshot that lies at or below the target, then the log: an older one where a newer one will not do.

    None where the cut is not closed. Raises `LogTruncated` where no snapshot lies there.
    """
    any_fits = False
    with closing(_seeds(source, cut, trimmed, folder)) as seeds:
        for seed in seeds:
            any_fits = True
            after = {**cut.after, **{number: floor for (_, number), floor in seed.starts.items()}}
            # What is restored rests on nothing that lies behind the target.
            within = {p: min(at, cut.until.get(p[1], at)) for p, at in seed.context.items() if p[0] == source.record.id}
            seed.context = VersionVector({**seed.context, **within})
            replica = _played(source, replace(cut, after=after, seeded=trimmed), seed, wanted)
            if replica is not None:
                return replica
    if any_fits:
        return None
    number = trimmed[0]
    raise LogTruncated(
        f"rows and KV up to {show(source.start(number))} have left the log, "
        "and no whole snapshot lies between there and the target",
        topic=wanted.topic,
        partition=number,
        position=source.start(number),
        remedy="Restore with snapshots=DIR, a folder with an older snapshot, or the weights alone with dense_only=True",
    )


def _seeds(source: Source, cut: Cut, trimmed: Sequence[int], folder: Path | None) -> Generator[Seed]:
    """Of the folder; else of a broker from its keeper, of a log from its changelogs, where it has any."""
    until = cut.until
    if folder is not None:
        snapshots = snapshots_in(folder, source.record.name, source.record.id)
        yield from seeds_below(snapshots, trimmed, until, source.start)
    elif isinstance(source, BrokerSource):
        name, deadline = f"restore-{uuid.uuid4().hex[:12]}", time.monotonic() + KEEPER_S
        with KeeperCopies(source.make_link, name, deadline) as copies:
            whole = Seed(source.record.id)
            for number in trimmed:
                partition, at = (source.record.id, number), source.partitions[number]
                try:
                    copy = copies.below(source.record.name, partition, at, until.get(number, START))
                except LogTruncated:
                    return  # The keeper has none that lies so low: the caller says what that means.
                whole.state += copy.state
                whole.context = whole.context.merge(copy.context)
            yield whole
    elif isinstance(source, LogSource) and source.changelogs is not None:
        with closing(source.changelogs()) as changelogs:
            seed = seed_of(changelogs, source.record, trimmed)
        if len(seed.state) == len(trimmed) and all(
            state.ceiling <= until.get(state.partition[1], START) for state in seed.state
        ):
            yield seed


def _played(source: Source, cut: Cut, seed: Seed | None, wanted: Wanted) -> Replica | None:
    """None where the version, or the seed's ceiling, rests on what lies outside of the cut."""
    playback = Playback(source, cut, wanted.progress)
    seed = seed or Seed(source.record.id)
    if cut.version is not None:
        seed.tensors = tensors_of(source, cut.version)
    try:
        replica = Replica(
            [wanted.topic],
            directory=Directory(playback.ask),
            make_link=playback.make_link,
            name="restored",
            ordering=Ordering.CAUSAL,
            store=wanted.store,
            keep_versions=1,
            partitions=[] if wanted.dense_only else None,
            arrays=wanted.arrays,
            seeds=[seed],
            timeout=AT_ONCE_S,
        )
    except ParamstreamTimeout:
        return None
    status = replica.status()
    served = status.served.get(wanted.topic)
    if not status.stopped and (cut.version is None or (served is not None and served.position == cut.version.position)):
        return replica
    replica.close()
    for error in status.stopped.values():
        raise error
    return None
