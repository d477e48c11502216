"""A moment of a replica as it sees itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypeVar

from ..consistency.vector import PartitionId
from ..transport.directory import Directory
from .digests import TopicHeld, digest_of
from .live_state import LiveState
from .row_reads import RowReads
from .status import STALE_S, ReplicaStatus, Served, Unfinished

_T = TypeVar("_T")


def status_now(live: LiveState, rows: RowReads) -> ReplicaStatus:
    """What the replica serves and lacks. Any thread."""
    sink, core, applier, directory = live.sink, live.core, live.applier, live.directory
    with sink.changed:
        positions = core.positions()
        heads = {p: core.heads(p) for p in positions}
        lag, buffered = core.lag_events(), core.buffered_bytes
        lost, garbled, repeated = core.lost_dependencies, core.garbled_frames, core.repeated_events
        stopped, known = dict(sink.stopped), core.heads_are_known
        jumping = {topic for topic, _ in sink.jumps.targets()}
    topics = list(applier.topics.values())
    served = {
        t.record.name: Served(s.version, s.position, s.digest, t.is_stale, s is t.pinned)
        for t in topics
        if (s := t.served) is not None
    }
    # Each broker tells of its own partitions: the one that was silent for longest counts.
    heard = [told[1] for p in heads if p not in stopped and (told := sink.clock.get(p)) is not None]
    age_s = time.monotonic() - min(heard, default=sink.heard_at)
    return ReplicaStatus(
        name=live.name,
        topics=tuple(t.record.name for t in topics),
        served=served,
        applied=directory.to_names(positions),
        lag_events=lag,
        last_error=sink.error_text,
        age_s=age_s,
        stale=not known or age_s > STALE_S or bool(stopped) or any(t.is_stale for t in topics),
        heads=_named(heads, directory),
        connected=sink.link.connected,
        lost_dependencies=lost,
        stopped=_named(stopped, directory),
        buffered_bytes=buffered,
        garbled_frames=garbled,
        repeated_events=repeated,
        failed={t.record.name: error for t in topics if (error := sink.failure(t)) is not None},
        unfinished=tuple(Unfinished(*begun) for begun in applier.unfinished),
        serves=sink.serves,
        jumping=tuple(t.record.name for t in topics if t.record.id in jumping),
        tables=tuple(table for t in topics for table in rows.tables(t.record)),
        tiers=applier.tiers(),
    )


def digest_now(live: LiveState, rows: RowReads) -> str:
    """As `Replica.digest`. Any thread."""
    with live.sink.changed:
        held: list[TopicHeld] = []
        for state in live.applier.topics.values():
            served = state.served
            entries = [
                item
                for number in live.scope.state_partitions(state.record)
                for item in live.store.entries((state.record.id, number)).items()
            ]
            weights = served.dense.digest if served is not None else b""
            held.append(TopicHeld(state.record.name, weights, entries, rows.digests(state.record)))
    # Entries never change: they are read from SSD with nothing held up.
    return digest_of(held)


def _named(values: Mapping[PartitionId, _T], directory: Directory) -> dict[tuple[str, int], _T]:
    name_of = directory.name_of
    return {(name, number): v for (topic, number), v in values.items() if (name := name_of(topic)) is not None}
