"""Holds what publishers were told against what the log says."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import paramstream as ps
from paramstream.consistency.position import epoch_of
from paramstream.consumers.events import Event

from .journal import Called
from .load import values_of
from .reference import Reference


def complaints(
    reference: Reference, calls: Iterable[Called], *, lived: bool, may_lose: bool, refusals: Collection[str]
) -> Iterator[str]:
    """What is wrong with the calls, to one topic that a log holds, of one publisher's life.

    `lived`: it was never killed, so every call has its outcome. `may_lose`: what was accepted may be called lost.
    `refusals`: the codes of errors that a call may be refused with, as by a full disk; nothing of it then counts.
    """
    allowed: list[str | None] = [None, "durable", *refusals]
    if may_lose:
        allowed.append("EventLost")
    for called in calls:
        about = f"{called} in round {called.round}"
        if len(called.outcomes) > 1 or (lived and not called.outcomes):
            yield f"{len(called.outcomes)} outcomes of {about}"
        outcome = called.outcomes[0] if called.outcomes else None
        if outcome not in allowed:
            yield f"neither durable nor killed: {about}"
        if outcome == "durable" or (called.accepted is not None and outcome is None and not may_lose):
            yield from (f"{problem}: {about}" for problem in _missing(reference, called))
        written = [reference.values[value] for value in called.entries.values() if value is not None]
        if any(count > 1 for count in written):
            yield f"in the log more than once: {about}"
        if outcome not in (None, "durable") and written and all(written):
            yield f"not durable, and stands whole in the log: {about}"


def _missing(reference: Reference, called: Called) -> Iterator[str]:
    """What the log lacks of a call that was accepted at `called.accepted`."""
    if called.accepted is None:
        yield "durable and never accepted"
        return
    stands = [
        event
        for (_, partition), at in ps.VersionVector.parse(called.accepted).items()
        if (event := reference.events.get((partition, at))) is not None
    ]
    if len(stands) != len(ps.VersionVector.parse(called.accepted)):
        yield f"not in the log at {called.accepted}"
    if called.kind == "weights" and not any(_is_commit(event, called.version) for event in stands):
        yield "no commit of the version stands at its place"
    for key, value in called.entries.items():
        if value is not None and reference.values[value] != 1:
            yield f"{value} stands {reference.values[value]} times in the log"
        if value is None and not any((key.encode(), None, None) in event.items for event in stands):
            yield f"no delete of {key} stands at its place"


def _is_commit(event: Event, version: int | None) -> bool:
    return event.kind == "commit" and event.version == version


def unlogged_complaints(
    shown: Reference, calls: Iterable[Called], *, lived: bool, refusals: Collection[str]
) -> Iterator[str]:
    """The same for a topic of persistence "none", whose events are gone with the broker that accepted them.

    `shown`: what was seen of it and never called lost, which is of its partitions' last epochs.
    """
    epochs: dict[int, int] = {}
    for partition, at in shown.events:
        epochs[partition] = max(epoch_of(at), epochs.get(partition, 0))
    for called in calls:
        about = f"{called} in round {called.round}"
        if len(called.outcomes) > 1 or (lived and not called.outcomes):
            yield f"{len(called.outcomes)} outcomes of {about}"
        outcome = called.outcomes[0] if called.outcomes else None
        if outcome not in (None, "accepted", "EventLost", *refusals):
            yield f"neither accepted, lost nor killed: {about}"
        written = [shown.values[value] for value in called.entries.values() if value is not None]
        if any(count > 1 for count in written):
            yield f"sequenced more than once: {about}"
        if outcome not in (None, "accepted") and written and all(written):
            yield f"not accepted, and stands whole: {about}"
        places = ps.VersionVector.parse(called.accepted or "")
        for (_, partition), at in places.items():
            if epoch_of(at) == epochs.get(partition) and (partition, at) not in shown.events:
                yield f"accepted in the epoch that lasts, and never seen: {about}"


def repeats(reference: Reference) -> Iterator[str]:
    """Sequences of a producer that stand in a partition more than once."""
    return (f"{identity} stands {count} times" for identity, count in reference.identities.items() if count > 1)


def disorder(events: Iterable[Event]) -> Iterator[str]:
    """Where a producer's calls come in another order than it made them, over all partitions of a topic.

    A producer's lives, and the calls of each, are numbered as they came.
    """
    last: dict[str, tuple[int, int]] = {}
    for event in events:
        for value in values_of(event):
            producer, life, number = value.split("/")[0].split(".")
            at = int(life), int(number)
            if at < last.get(producer, at):
                yield f"{value} comes after {producer}.{last[producer]}"
            last[producer] = at
