"""Holds what publishers were told against what the log says."""

from __future__ import annotations

from collections.abc import Iterator

import paramstream as ps

from .journal import Called
from .reference import Reference


def complaints(reference: Reference, calls: list[Called], *, lived: bool, may_lose: bool) -> Iterator[str]:
    """What is wrong with the calls of one publisher's life. `lived`: it was never killed, so every call has its outcome."""
    for called in calls:
        about = f"{called.call} ({called.kind}, {called.outcomes or called.accepted}) {called.text}"
        if len(called.outcomes) > 1 or (lived and not called.outcomes):
            yield f"{len(called.outcomes)} outcomes of {about}"
        outcome = called.outcomes[0] if called.outcomes else None
        if outcome not in (None, "durable") and not may_lose:
            yield f"neither durable nor killed: {about}"
        if outcome == "durable" or (called.accepted is not None and outcome is None and not may_lose):
            yield from (f"{problem}: {about}" for problem in _missing(reference, called))
        written = [reference.values[value] for value in called.entries.values() if value is not None]
        if any(count > 1 for count in written):
            yield f"in the log more than once: {about}"
        if outcome == "EventLost" and called.kind == "put" and all(written):
            yield f"called lost, and stands whole in the log: {about}"


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
    if called.kind == "weights" and not any(event.version == called.version for event in stands):
        yield "another version stands at its place"
    for key, value in called.entries.items():
        if value is not None and reference.values[value] != 1:
            yield f"{value} stands {reference.values[value]} times in the log"
        if value is None and not any((key.encode(), None, None) in event.items for event in stands):
            yield f"no delete of {key} stands at its place"


def disorder(reference: Reference) -> Iterator[str]:
    """Where a producer's calls stand in another order than it made them, over all partitions of its topic.

    A value is PRODUCER.LIFE.NUMBER/KEY; a producer's lives, and the calls of each, are numbered as they came.
    """
    last: dict[str, tuple[int, int]] = {}
    for event in reference.events.values():
        for value in (value for _, value, _ in event.items if value is not None):
            producer, life, number = value.decode().split("/")[0].split(".")
            at = int(life), int(number)
            if at < last.get(producer, at):
                yield f"{value.decode()} comes after {producer}.{last[producer]}"
            last[producer] = at
