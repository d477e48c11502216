"""Point-in-time restore: the state of a topic at a version, a vector or a time, from a log's folder or a broker.

    with ps.restore("file:/var/lib/paramstream", "model", at=1200) as rep:
        rep.weights()["layer.weight"]

What comes back is a `Replica` that follows nothing: it stays at that state.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from ..consistency.gate import Ordering
from ..consistency.position import START, show
from ..errors import InvalidEvent, LogTruncated, NotDurable, ParamstreamError
from ..eventlog.open import folder_of
from ..eventlog.reading import FolderReader
from ..events.arrays import ArrayKind
from ..tiers.store import TieredStore
from ..transport.calls import VersionRecord
from ..transport.directory import Directory
from ..transport.link import Handler, Link
from ..transport.messages import Hello
from .playback import Playback
from .replica import Replica
from .sources import BrokerSource, LogSource, Progress, Registry, Source
from .targets import Moment, find_target

ANSWER_S = 30.0
"""How long a broker may take for each answer."""


def restore(
    source: str,
    topic: str,
    at: Moment = None,
    store: TieredStore | None = None,
    dense_only: bool = False,
    *,
    registry: Registry,
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
    with closing(_open(source, topic, registry)) as opened:
        if opened.record.persistence == "none":
            raise NotDurable('nothing of a topic with persistence "none" can be restored', topic=topic)
        if not dense_only:
            _check_state(opened)
        target = find_target(opened, at, dense_only)
        playback = Playback(opened, target.cut, progress)
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
        _check(replica, topic, target.version)
    except BaseException:
        replica.close()
        raise
    return replica


def _open(url: str, topic: str, registry: Registry) -> Source:
    if url.startswith(("tcp://", "ipc://")):

        def make_link(handler: Handler, hello: Callable[[], Hello], name: str) -> Link:
            return Link([url], handler, hello, name)

        return BrokerSource(make_link, topic, lambda: ANSWER_S)
    if not url.startswith("file:"):
        raise InvalidEvent(
            f"nothing can be restored from {url!r}", item=url, remedy='Give "file:DIR", or a broker as tcp://HOST:PORT'
        )
    return LogSource(FolderReader(folder_of(url)), topic, registry)


def _check_state(source: Source) -> None:
    """Rows and KV are in the log from the first event on."""
    for number in range(source.record.partitions):
        start = source.start(number)
        if start > START:
            raise LogTruncated(
                f"rows and KV of this topic no longer reach back: the log starts behind {show(start)}",
                topic=source.record.name,
                partition=number,
                position=start,
                remedy="Restore the weights alone with dense_only=True",
            )


def _check(replica: Replica, topic: str, version: VersionRecord | None) -> None:
    """All that was to be served is."""
    status = replica.status()
    for error in status.stopped.values():
        raise error
    served = status.served.get(topic)
    if version is not None and (served is None or served.position != version.position):
        raise ParamstreamError(
            "the version could not be put together: its commit depends on what lies outside of the log",
            topic=topic,
            position=version.position,
            version=version.version,
        )
