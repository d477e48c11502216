"""The brokers of a world as members of one group: which slots are whose, in generations that each hears of in its own time.

What a Kafka group does, as far as a broker sees it: before slots move all members are asked to give theirs up, and are
waited for only so long; then each is told the new map. Who is not heard of loses its slots, and does not know.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from paramstream.eventlog.log import Share
from paramstream.transport.slots import SLOTS

from .clock import Clock
from .process import SimProcess

DRAIN_S = 1.0
"""How long the members are waited for."""


@dataclass(eq=False)
class _Member:
    process: SimProcess
    told: int = 0
    """The last generation that it has heard of."""
    untold: tuple[int, list[Share]] | None = None
    is_drained: bool = True


@dataclass
class Group:
    clock: Clock
    members: dict[SimProcess, _Member] = field(default_factory=dict[SimProcess, _Member])
    generation: int = 0
    slots: dict[int, SimProcess] = field(default_factory=dict[int, SimProcess])
    _is_sharing: bool = False
    _until: float = 0.0

    def join(self, process: SimProcess) -> None:
        self.members[process] = _Member(process)
        self.share()

    def lose(self, process: SimProcess) -> None:
        """It has left, or is not heard of any more."""
        if self.members.pop(process, None) is not None:
            self.share()

    def share(self) -> None:
        """The slots are to be shared out anew."""
        self._is_sharing, self._until = True, self.clock.now + DRAIN_S
        for member in self.members.values():
            member.untold = None
            if member.told:
                member.is_drained = False
                member.process.slots.revoking(_setter(member))

    def step(self, chance: random.Random, hears: float) -> None:
        """`hears`: how likely a member hears now of what it was not told yet."""
        is_drained = all(member.is_drained for member in self.members.values())
        if self._is_sharing and self.members and (is_drained or self.clock.now > self._until):
            self._is_sharing = False
            self._share_out(chance)
        for member in list(self.members.values()):
            if member.untold is not None and chance.random() < hears:
                self._tell(member, *member.untold)

    def is_settled(self) -> bool:
        return not self._is_sharing and all(member.untold is None for member in self.members.values())

    def _share_out(self, chance: random.Random) -> None:
        """Some slots stay, where their member does; the others go anywhere."""
        self.generation += 1
        there = list(self.members)
        for slot in range(SLOTS):
            if self.slots.get(slot) not in self.members or chance.random() < 0.4:
                self.slots[slot] = chance.choice(there)
        shares = [
            Share(each.member.broker, each.member.endpoint, tuple(s for s in range(SLOTS) if self.slots[s] is each))
            for each in there
        ]
        for member in self.members.values():
            member.untold = self.generation, shares

    def _tell(self, member: _Member, generation: int, shares: list[Share]) -> None:
        listener, broker = member.process.slots, member.process.member.broker
        if member.told not in (0, generation - 1):
            # Somebody else may have had its slots meanwhile: it keeps none of what it opened in them.
            listener.assigned(
                generation, [each._replace(slots=()) if each.broker == broker else each for each in shares]
            )
        listener.assigned(generation, shares)
        member.told, member.untold = generation, None


def _setter(member: _Member) -> Callable[[], None]:
    def done() -> None:
        member.is_drained = True

    return done
