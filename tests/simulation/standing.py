"""What stands in a log, by what it was given and has said: the truth that a world is checked against."""

from __future__ import annotations

from paramstream.consistency.position import START, epoch_of
from paramstream.consistency.vector import PartitionId
from paramstream.eventlog.log import Recovered
from paramstream.events.codec import Buffer, EventFrame, decode_event
from paramstream.events.kinds import LOG_ONLY_KINDS, Claim


class SimLog:
    """What one partition's log was given and has said, over all lives of its owners, checked at each recovery.

    What is durable stands. What was appended stands unless power failed or the disk did. What stands is the beginning of
    what was appended, in order, with its bytes.
    """

    def __init__(self, partition: PartitionId) -> None:
        self.partition = partition
        self.frames: list[EventFrame] = []
        """All that stands, cut away since or not; and what the present owner has appended."""
        self.durable = START
        """Up to there its owners were told that it is safe."""
        self.lost: dict[int, int] = {}
        """Position → at which start of a broker sessions could first be told that it is lost."""
        self._untold: list[int] = []
        """Positions found to be lost while no epoch has been opened since."""
        self.starts: dict[int, int] = {}
        """Epoch → at which start of a broker it was claimed."""
        self.problems: list[str] = []
        self._torn: EventFrame | None = None
        """What was being appended when that failed, or when the process was killed: it may stand."""

    # --- what stands --------------------------------------------------------------------------------------------------------

    @property
    def reached(self) -> int:
        return next((frame.position for frame in reversed(self.frames) if is_record(frame)), START)

    def records(self) -> list[EventFrame]:
        """Everything that has a position: epoch records, notes and events."""
        return [frame for frame in self.frames if is_record(frame)]

    def events(self) -> list[EventFrame]:
        """What sessions wrote."""
        return [frame for frame in self.records() if frame.head.producer]

    # --- what is done with it ---------------------------------------------------------------------------------------------------

    def appending(self, frame: Buffer, start: int) -> None:
        self._torn = decode_event(bytes(frame))
        if isinstance(self._torn.payload, Claim):
            self.starts[self._torn.payload.epoch] = start

    def appended(self) -> None:
        assert self._torn is not None
        self.frames.append(self._torn)
        self._torn = None

    def synced(self, position: int) -> None:
        self.durable = max(self.durable, position)
        if self._untold and epoch_of(position) == max(self.starts):
            self.lost.update(dict.fromkeys(self._untold, self.starts[epoch_of(position)]))
            self._untold.clear()

    def recovered(self, found: Recovered, records: list[EventFrame], *, may_lose: bool) -> None:
        """`may_lose`: power has failed, or this partition's disk."""
        given = [*self.frames, self._torn] if self._torn is not None else self.frames
        behind = found.base.position if found.base is not None else START
        reached = records[-1].position if records else behind
        if self.durable > reached:
            self._problem(f"was durable to {self.durable:x}, and is recovered to {reached:x}")
        if self.reached > reached and not may_lose:
            self._problem(f"was written to {self.reached:x}, and is recovered to {reached:x}, though no power failed")
        written = [frame.buffer for frame in given if is_record(frame) and frame.position > behind]
        if [frame.buffer for frame in records] != written[: len(records)]:
            self._problem(f"gives other records behind {behind:x} than were appended")
        self._cut(given, reached, found.last_claim)

    def _cut(self, given: list[EventFrame], reached: int, last_claim: int) -> None:
        self._untold += [frame.position for frame in given if is_record(frame) and frame.position > reached]
        self.frames = [frame for frame in given if frame.position <= reached or 0 < _claimed(frame) <= last_claim]
        self._torn = None

    def check(self, read: list[EventFrame], start: int) -> None:
        """What the log gives readers behind `start` is what stands there."""
        if [frame.buffer for frame in read] != [frame.buffer for frame in self.records() if frame.position > start]:
            self._problem(f"gives readers other records behind {start:x} than stand")

    def _problem(self, what: str) -> None:
        self.problems.append(f"the log of {self.partition} {what}")


def is_record(frame: EventFrame) -> bool:
    return frame.kind not in LOG_ONLY_KINDS


def _claimed(frame: EventFrame) -> int:
    """Of a claim its epoch, else 0."""
    return frame.payload.epoch if isinstance(frame.payload, Claim) else 0
