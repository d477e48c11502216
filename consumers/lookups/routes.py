"""Which replicas serve look-ups of which partitions, and whom a client asks first: by what they report, and what it met with them.

A core: time comes in, nothing is asked here. Thread-safe by its owner's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...consistency.vector import PartitionId
from ...events.codec import decode_vector
from ...transport.messages import Report
from ..status import STALE_S

AVOID_S = (0.25, 8.0)
"""For how long a replica that failed is asked only where no other one can be, the first time and at most; doubled each time."""

RETRY_S = 0.1
"""How soon after a failure it is asked again even then."""

REMEMBER_S = 60.0
"""A replica that its brokers no longer tell of is asked for so long still: they may have been restarted, or be away."""


@dataclass(slots=True)
class Route:
    """A replica that serves."""

    name: str
    endpoint: str
    applied: Mapping[PartitionId, int]
    """Each partition followed, and its position when it last reported."""
    reported_at: float
    failures: int = 0
    """In a row."""
    failed_at: float = 0.0
    avoid_until: float = 0.0
    trouble: str = ""
    """What it last failed with."""


@dataclass(slots=True)
class Routes:
    """All that one client knows of; time is `time.monotonic()`."""

    _routes: dict[str, Route] = field(default_factory=dict[str, Route])
    """By name."""

    def learn(self, reports: Iterable[Report], now: float) -> list[str]:
        """What brokers tell now; returns endpoints that nobody serves at any more."""
        before = {route.endpoint for route in self._routes.values()}
        for report in reports:
            if report.serves:
                self._learn(report, now - report.age_s)
            else:
                self._routes.pop(report.name, None)
        kept = {name: route for name, route in self._routes.items() if now - route.reported_at < REMEMBER_S}
        self._routes = kept
        return sorted(before - {route.endpoint for route in kept.values()})

    def _learn(self, report: Report, reported_at: float) -> None:
        known = self._routes.get(report.name)
        if known is not None and known.endpoint == report.serves:
            if reported_at > known.reported_at:
                known.applied, known.reported_at = decode_vector(report.applied), reported_at
            return
        if known is None or reported_at >= known.reported_at:
            self._routes[report.name] = Route(
                report.name, report.serves, decode_vector(report.applied), reported_at
            )  # fmt: skip

    def candidates(self, partition: PartitionId, needed: int, turn: int, now: float) -> list[Route]:
        """Who serves the partition and may be asked now, the one to ask first first: one that has not failed lately and was heard of;
        of those one that has seen `needed` as far as it has reported; and of these each in its turn.
        """
        able = [
            route
            for route in sorted(self._routes.values(), key=lambda each: each.name)
            if partition in route.applied and not (route.failures and now < route.failed_at + RETRY_S)
        ]
        if len(able) < 2:
            return able
        first = turn % len(able)
        turned = able[first:] + able[:first]
        return sorted(
            turned,
            key=lambda each: (
                each.avoid_until if now < each.avoid_until else 0.0,
                now - each.reported_at > STALE_S,
                each.applied[partition] < needed,
            ),
        )

    def answered(self, endpoint: str) -> None:
        for route in self._at(endpoint):
            route.failures, route.avoid_until, route.trouble = 0, 0.0, ""

    def failed(self, endpoint: str, trouble: str, now: float) -> None:
        for route in self._at(endpoint):
            route.failed_at, route.trouble = now, trouble
            route.avoid_until = now + min(AVOID_S[0] * 2**route.failures, AVOID_S[1])
            route.failures = min(route.failures + 1, 16)

    def describe(self, partition: PartitionId) -> str:
        """What is wrong with those that serve it; empty where nobody does."""
        able = [route for route in self._routes.values() if partition in route.applied]
        return "; ".join(f"{each.name!r} at {each.endpoint}: {each.trouble or 'no answer yet'}" for each in able)

    def _at(self, endpoint: str) -> list[Route]:
        return [route for route in self._routes.values() if route.endpoint == endpoint]
