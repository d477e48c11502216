"""A machine's disk: what was written survives a kill of the process, what was synced survives a power failure."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from paramstream.consistency.position import START
from paramstream.consistency.vector import PartitionId
from paramstream.events.codec import Buffer, EventFrame, decode_event
from paramstream.events.kinds import LOG_ONLY_KINDS, Claim, Kind


@dataclass
class SimLog:
    """One partition's records, in order. It has one writer at a time, so all of them count."""

    frames: list[EventFrame] = field(default_factory=list[EventFrame])
    synced: int = 0
    """How many of them a power failure leaves."""

    def append(self, frame: Buffer) -> None:
        self.frames.append(decode_event(bytes(frame)))

    def sync(self) -> int:
        """Returns the last position that is safe now."""
        self.synced = len(self.frames)
        return self.reached

    @property
    def reached(self) -> int:
        records = (frame.position for frame in reversed(self.frames) if frame.kind not in LOG_ONLY_KINDS)
        return next(records, START)

    def claims(self) -> list[int]:
        """The epochs claimed, in order."""
        return [frame.payload.epoch for frame in self.frames if isinstance(frame.payload, Claim)]

    def recovered(self) -> tuple[EventFrame | None, list[EventFrame]]:
        """The newest base, and the records behind it. What is kept is synced."""
        self.synced = len(self.frames)
        bases = [index for index, frame in enumerate(self.frames) if frame.kind is Kind.BASE]
        if not bases:
            return None, self.records()
        base = self.frames[bases[-1]]
        return base, [record for record in self.records() if record.position > base.position]

    def records(self) -> list[EventFrame]:
        """Everything that has a position: epoch records, notes and events."""
        return [frame for frame in self.frames if frame.kind not in LOG_ONLY_KINDS]

    def events(self) -> list[EventFrame]:
        """What sessions wrote."""
        return [frame for frame in self.records() if frame.head.producer]

    def read(self, after: int, shown: int, count: int) -> list[EventFrame]:
        return [record for record in self.records() if after < record.position <= shown][:count]


class Disk:
    """The logs of all partitions, and the machine's boot."""

    def __init__(self) -> None:
        self.logs: dict[PartitionId, SimLog] = {}
        self.boots = 1

    @property
    def boot(self) -> str:
        return f"boot-{self.boots}"

    def log(self, partition: PartitionId) -> SimLog:
        return self.logs.setdefault(partition, SimLog())

    def fail_power(self, chance: random.Random) -> None:
        """Of what was not synced a random part is left, in each log by itself."""
        self.boots += 1
        for log in self.logs.values():
            del log.frames[chance.randint(log.synced, len(log.frames)) :]
