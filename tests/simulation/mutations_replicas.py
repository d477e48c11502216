"""What replicas promise, switched off: of their items, their snapshots and their changelogs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from paramstream.consistency.gate import Gate
from paramstream.consistency.position import START
from paramstream.consistency.vector import PartitionId, VersionVector
from paramstream.consumers.applying import TopicState
from paramstream.consumers.changelog.core import Batch, ChangelogCore
from paramstream.consumers.changelog.records import Marker, marker
from paramstream.consumers.scope import Scope
from paramstream.consumers.snapshots import taking
from paramstream.consumers.snapshots.taking import Taking
from paramstream.tiers.entries import Entry, EntryTable

from .mutation import Mutation, Patch

# --- what stands there instead --------------------------------------------------------------------------------------------


def _put_whatever_is_held(table: EntryTable, key: bytes, entry: Entry) -> Entry | None:
    held = table.held(key)
    table.restore(key, entry)
    return held


def _delete_whatever_is_held(table: EntryTable, key: bytes, position: int) -> Entry | None:
    held = table.held(key)
    table.restore(key, None)
    return held


def _at_once(taking: Taking, copied: Mapping[PartitionId, tuple[int, int]], deadline: float) -> bool:
    return True


_record = taking._Copy.record  # pyright: ignore[reportPrivateUsage]


def _from_where_the_copy_ended(copy: taking._Copy) -> msgspec.Struct:  # pyright: ignore[reportPrivateUsage]
    return msgspec.structs.replace(_record(copy), floor=copy.ceiling)


def _positions_alone(gate: Gate) -> VersionVector[int]:
    return gate.positions()


def _nothing_to_wait_for(scope: Scope, starts: Mapping[PartitionId, int], targets: Mapping[PartitionId, int]) -> None:
    scope.starts |= starts
    scope.targets = dict.fromkeys(scope.targets, START)


def _never_stale(topic: TopicState) -> bool:
    return False


def _from_where_it_was_looked_up(
    core: ChangelogCore, batch: Batch, position: int, context: VersionVector[int]
) -> Marker:
    return marker(position, max(core.ceiling, position), context)


REPLICAS = [
    Mutation(
        "item positions",
        "an event changes an item only if its position is greater",
        (
            Patch(EntryTable, "put", _put_whatever_is_held),
            Patch(EntryTable, "delete", _delete_whatever_is_held),
        ),
        "went back behind what was copied",
        seeds=1000,
        found_at=4,
    ),
    Mutation(
        "ceiling durable",
        "a copy counts when its ceiling is durable, and nothing of it was undone meanwhile",
        (Patch(Taking, "_settles", _at_once),),
        "cannot begin with",
        seeds=200,
        found_at=3,
    ),
    Mutation(
        "floor before the copy",
        "what was copied early is made up for by the log from where the copy began",
        (Patch(taking._Copy, "record", _from_where_the_copy_ended),),  # pyright: ignore[reportPrivateUsage]
        "the events say",
        seeds=1000,
        found_at=54,
    ),
    Mutation(
        "nothing before the ceiling",
        "nothing is read of a copy before all up to its ceiling is applied",
        (Patch(Scope, "begin_at", _nothing_to_wait_for),),
        "the events say",
        seeds=400,
        found_at=4,
    ),
    Mutation(
        "closed vectors",
        "whoever observes a replica observes what its events rest on",
        (Patch(Gate, "vector", _positions_alone),),
        "before",
        seeds=2000,
        found_at=283,
    ),
    Mutation(
        "stale",
        'under persistence "none" what is served of an epoch that is gone says so',
        (Patch(TopicState, "is_stale", property(_never_stale)),),
        "and says it is",
        seeds=200,
        found_at=1,
    ),
    Mutation(
        "changelog's floor",
        "a changelog is made up for by the log from where its last whole flush began",
        (Patch(ChangelogCore, "marker", _from_where_it_was_looked_up),),
        "the events say",
        seeds=1000,
        found_at=4,
    ),
]
