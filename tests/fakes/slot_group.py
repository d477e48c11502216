"""Hands out slots to the members of a shared log, when the test says so or one comes or goes: what a Kafka group does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from paramstream.eventlog.log import Member, Share, SlotListener

Shares = Callable[[Sequence[Member]], Mapping[Member, Sequence[int]]]

DRAIN_S = 20.0


class SlotGroup:
    def __init__(self) -> None:
        self._members: dict[Member, SlotListener] = {}
        self._lock = threading.RLock()
        self._slots = 0
        self.generation = 0
        self.shares: Shares = self._evenly
        """How the next generation shares them out."""

    def join(self, member: Member, slots: int, listener: SlotListener) -> FakeMembership:
        with self._lock:
            self._slots = slots
            self._members[member] = listener
            self.share()
        return FakeMembership(self, member)

    def leave(self, member: Member) -> None:
        with self._lock:
            if self._members.pop(member, None) is not None:
                self.share()

    def lose(self, endpoint: str) -> tuple[Member, SlotListener]:
        """The broker is not heard of any more, and hears nothing: its slots go to the others."""
        with self._lock:
            member = next(each for each in self._members if each.endpoint == endpoint)
            listener = self._members.pop(member)
            self.share()
        return member, listener

    def share(self) -> None:
        """A new generation: all revoke, then all are told."""
        with self._lock:
            drained = [threading.Event() for _ in self._members]
            for done, listener in zip(drained, self._members.values(), strict=True):
                listener.revoking(done.set)
            assert all(done.wait(DRAIN_S) for done in drained), "a broker does not give up its slots"
            self.generation += 1
            shares = [
                Share(member.broker, member.endpoint, tuple(slots))
                for member, slots in self.shares(list(self._members)).items()
            ]
            for listener in self._members.values():
                listener.assigned(self.generation, shares)

    def share_evenly(self) -> None:
        """From the next generation on."""
        self.shares = self._evenly

    def _evenly(self, members: Sequence[Member]) -> Mapping[Member, Sequence[int]]:
        return {member: range(at, self._slots, len(members)) for at, member in enumerate(members)}


class FakeMembership:
    def __init__(self, group: SlotGroup, member: Member) -> None:
        self._group = group
        self._member = member

    @property
    def trouble(self) -> str:
        return ""

    def close(self) -> None:
        self._group.leave(self._member)
