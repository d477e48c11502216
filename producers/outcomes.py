"""How calls move through their outcomes: pending, accepted, then durable, lost or refused; each has one."""

from __future__ import annotations

from ..errors import ParamstreamError
from .calls import Call, Event
from .effects import Effect, Settled
from .partition_state import PartitionState


class Outcomes:
    """The calls of a session that are not final, and the effects that tell of changes."""

    def __init__(self, effects: list[Effect]) -> None:
        self.unfinished: dict[int, Call] = {}
        """Calls that are not final, by serial, oldest first."""
        self.failed: Call | None = None
        """The first call that failed since somebody took it (`take_failed`)."""
        self._effects = effects
        self._serial = 0

    def register(self, call: Call) -> None:
        self._serial += 1
        call.serial = self._serial
        self.unfinished[call.serial] = call

    def take_failed(self) -> Call | None:
        """The first call that failed since the last look, if there was one."""
        failed, self.failed = self.failed, None
        return failed

    def stands(self, partition: PartitionState, call: Call, position: int) -> None:
        """An event of `call` is accepted at `position`."""
        call.unsettled -= 1
        if position > call.positions.get(partition.id, 0):
            call.positions[partition.id] = position
        if call.persistence == "write_back" and not partition.is_durable(position):
            call.awaiting += 1
            partition.wait_for_durable(position, call)
        self.review(call)

    def durable(self, call: Call) -> None:
        """An accepted event of `call` is durable."""
        call.awaiting -= 1
        self.review(call)

    def turned_down(self, call: Call, error: ParamstreamError) -> None:
        """An event of `call` is answered with an error: refused, or lost before it was accepted."""
        call.unsettled -= 1
        self.fail(call, error)
        self.review(call)

    def lost(self, call: Call, error: ParamstreamError) -> None:
        """An accepted event of `call` is lost."""
        call.awaiting -= 1
        self.fail(call, error)
        self.review(call)

    def go_again(self, event: Event, written: ParamstreamError) -> list[Call]:
        """A lost event has no answer once more. Returns the calls that it goes again for: all that have no outcome but those
        whose receipt was written as text, which end with the error `written`.
        """
        calls = [call for call in event.calls if not call.final]
        for call in calls:
            call.unsettled += 1 if event.position else 0
            call.renewals += 1
            call.accepted = False
            if call.written:
                self.turned_down(call, written)
        return [call for call in calls if not call.written]

    def fail(self, call: Call, error: ParamstreamError) -> None:
        """The first error of a call is its outcome; of an all-or-nothing call at once, else when all its events have one."""
        if call.final:
            return
        if call.error is None:
            call.error = error
            self.failed = self.failed or call
        if call.whole:
            self._finalise(call)

    def review(self, call: Call) -> None:
        """Move the call on where all its events have moved on."""
        if call.final or call.open or call.unsettled:
            return
        if call.error is not None:
            self._finalise(call)
            return
        if not call.accepted:
            call.accepted, call.unknown = True, False
            self._effects.append(Settled(call))
        if not call.awaiting:
            call.durable = call.persistence != "none"
            self._finalise(call)

    def _finalise(self, call: Call) -> None:
        call.final = True
        self.unfinished.pop(call.serial, None)
        self._effects.append(Settled(call))
