"""What replicas report of themselves, and the leases that follow from it. They report to every broker."""

from __future__ import annotations

import time

import msgspec

from ..consistency.vector import PartitionId
from ..events.codec import decode_vector
from ..transport.messages import Report
from .retention import Lease

REMEMBER_S = 600.0
"""How long a replica that reports no more is still listed, with the age of its last report."""


class Reports:
    """In the loop's thread."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, Report]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._reports)

    def take(self, report: Report) -> None:
        """Raises `CorruptLog` where its vector is none: whoever asks for reports would be told so instead of the reporter."""
        decode_vector(report.applied)
        self._reports[report.name] = (time.monotonic(), report)

    def newest(self, topic: int | None = None) -> list[Report]:
        """The newest report of each replica (that follows the topic), with its age."""
        now = time.monotonic()
        return [
            msgspec.structs.replace(report, age_s=now - at)
            for at, report in self._reports.values()
            if topic is None or topic in report.topics
        ]

    def leases(self, partition: PartitionId) -> list[Lease]:
        """What reports say is still needed of a partition, and of its versions."""
        now, topic = time.monotonic(), partition[0]
        found: list[Lease] = []
        for name, (at, report) in self._reports.items():
            if topic not in report.topics:
                continue
            position, taken = _at(report.needs, partition), _at(report.taken, partition)
            # A pinned version may stay for long; it is in memory, and must not hold the log meanwhile.
            served = [] if topic in report.pinned else [commit for of, _, commit, _ in report.served if of == topic]
            fetched = [commit for of, commit in report.fetching if of == topic]
            found.append(Lease(name, position, now - at, (*served, *fetched), taken))
        return found

    def forget_old(self) -> None:
        """Drop those so old that nobody asks for them any more: names of replicas are without number."""
        before = time.monotonic() - REMEMBER_S
        self._reports = {name: known for name, known in self._reports.items() if known[0] > before}


def _at(positions: tuple[tuple[int, int, int], ...], partition: PartitionId) -> int | None:
    return next((at for *where, at in positions if tuple(where) == partition), None)
