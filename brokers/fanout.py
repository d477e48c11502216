"""Fan-out of one partition: who gets which event next.

Recent frames stand in a ring with a budget in bytes. Each follower has a cursor in it and a byte credit of its own for this
partition; it is sent what lies behind the cursor, never past its credit, but always one event when nothing is outstanding.
One that falls out of the ring is *demoted*: it fetches from the log, and follows again when it is near the head. So a slow
follower costs no memory beyond the ring, and holds up nobody.

Sends come as iterators that decide step by step: the shell sends each before it asks for the next, and says `blocked` where
a peer's pipe was full. That event, and what follows it, then stays behind the cursor until `retry`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..consistency.vector import PartitionId
from ..events.codec import Buffer
from ..transport.messages import Demoted, Follow, Following, Heads

RINGS_BYTES = 512 * 1024 * 1024
"""Recent frames of all partitions of a broker together, as far as `MIN_RING_BYTES` for each allows."""

MIN_RING_BYTES = 1024 * 1024
"""Kept for each partition whatever their number: one event at least."""

RING_BYTES = 64 * 1024 * 1024
"""Recent frames kept for followers: a second or two of a busy partition, so that a short stall is no demotion."""


MAX_CREDIT_BYTES = 32 * 1024 * 1024
"""What may be on the way to one follower, whatever credit it gives: its pipe's share of the broker's memory."""


@dataclass(frozen=True, slots=True)
class Send:
    """One frame for a peer: an event's (`content` is a buffer), or a message about the following."""

    peer: bytes
    content: Buffer | Following | Demoted
    position: int
    """Of the event; of a message: where the follower stands."""


@dataclass(slots=True, eq=False)
class _Follower:
    peer: bytes
    partition: PartitionId
    cursor: int
    """Number of the next frame to send, counted from the ring's first one ever."""
    credit_bytes: int
    sent_bytes: int = 0
    consumed_bytes: int = 0
    sent_position: int = 0
    is_blocked: bool = False
    is_gone: bool = False

    def has_credit(self, nbytes: int) -> bool:
        outstanding = self.sent_bytes - self.consumed_bytes
        return outstanding <= 0 or outstanding + nbytes <= self.credit_bytes


class FanOutCore:
    """Followers and recent frames of one partition. Not thread-safe."""

    def __init__(self, ring_bytes: int = RING_BYTES) -> None:
        self.ring_bytes = ring_bytes
        """The budget of recent frames; a smaller one holds from the next event on."""
        self._frames: list[Buffer] = []
        self._positions: list[int] = []
        self._number = 0
        """The number of the frame at index 0 of both lists."""
        self._first = 0
        """Index of the first frame that is kept; those before it are let go, and swept away together."""
        self._start = 0
        """The position before the first frame that is kept: the lowest that a `Follow` may name."""
        self._kept_bytes = 0
        self._followers: dict[bytes, _Follower] = {}
        self.demotions = 0
        """How often a follower fell out of the ring."""

    def accepted(self, frame: Buffer, position: int) -> Iterator[Send]:
        """An event was accepted: it is kept at once; iterate to send it to those who have credit."""
        if not self._positions:
            self._start = max(self._start, position - 1)
        self._frames.append(frame)
        self._positions.append(position)
        self._kept_bytes += len(frame)
        demoted = self._let_go(position) if self._kept_bytes > self.ring_bytes else []
        return self._to(list(self._followers.values()), demoted)

    def follow(self, peer: bytes, message: Follow, heads: Heads, ends: tuple[tuple[int, int], ...]) -> Iterator[Send]:
        """Begin after `message.after` if the ring reaches back to it, with `Following` first; else `Demoted`.

        A peer that follows already begins anew, with fresh credit.
        """
        self.unfollow(peer)
        cursor = self._cursor_after(message.after, heads.accepted)
        partition = message.topic, message.partition
        if cursor is None:
            return iter([Send(peer, Demoted(*partition, message.after, heads.accepted, ends=ends), message.after)])
        credit_bytes = min(message.credit_bytes, MAX_CREDIT_BYTES)
        follower = _Follower(peer, partition, cursor, credit_bytes, sent_position=message.after)
        self._followers[peer] = follower
        answer = Following(*partition, message.after, heads.accepted, heads.durable, ends, heads.time)
        return self._to([follower], [Send(peer, answer, message.after)])

    def unfollow(self, peer: bytes) -> None:
        """Nothing more goes to the peer. One that does not follow changes nothing."""
        follower = self._followers.pop(peer, None)
        if follower is not None:
            follower.is_gone = True

    def credit(self, peer: bytes, consumed_bytes: int) -> Iterator[Send]:
        """The peer has taken `consumed_bytes` in all since its `Follow`; iterate to send what fits now."""
        follower = self._followers.get(peer)
        if follower is None:
            return iter(())
        follower.consumed_bytes = min(max(consumed_bytes, follower.consumed_bytes), follower.sent_bytes)
        # Who returns credit takes frames off its pipe.
        follower.is_blocked = False
        return self._to([follower], [])

    def blocked(self, peer: bytes, position: int) -> None:
        """The peer's pipe did not take the event at `position`: it is sent again from there after `retry` or `credit`."""
        follower = self._followers.get(peer)
        if follower is None:
            return
        follower.is_blocked = True
        index = bisect_right(self._positions, position - 1, lo=self._first)
        number = self._number + index
        while follower.cursor > number:
            follower.cursor -= 1
            follower.sent_bytes -= len(self._frames[follower.cursor - self._number])
        before = index - 1
        follower.sent_position = self._positions[before] if before >= self._first else self._start

    def retry(self) -> Iterator[Send]:
        """Try the blocked peers again. Call it every few milliseconds while `has_blocked`."""
        blocked = [follower for follower in self._followers.values() if follower.is_blocked]
        for follower in blocked:
            follower.is_blocked = False
        return self._to(blocked, [])

    @property
    def has_blocked(self) -> bool:
        return any(follower.is_blocked for follower in self._followers.values())

    def sent(self, peer: bytes) -> int:
        """The last position given to the peer's pipe; 0 if it does not follow."""
        follower = self._followers.get(peer)
        return follower.sent_position if follower is not None else 0

    def standing(self, peer: bytes) -> tuple[int, int]:
        """The last position given to the peer's pipe, and the bytes of it not yet returned as credit; (0, 0) where it fetches."""
        follower = self._followers.get(peer)
        if follower is None:
            return 0, 0
        return follower.sent_position, follower.sent_bytes - follower.consumed_bytes

    def followers(self) -> list[bytes]:
        return list(self._followers)

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    # --- inside ---

    def _to(self, followers: Iterable[_Follower], first: Iterable[Send]) -> Iterator[Send]:
        yield from first
        for follower in followers:
            while not follower.is_blocked and not follower.is_gone:
                index = follower.cursor - self._number
                if index >= len(self._frames):
                    break
                frame = self._frames[index]
                if not follower.has_credit(len(frame)):
                    break
                # Counted before it is handed over: `blocked` takes it back.
                follower.cursor += 1
                follower.sent_bytes += len(frame)
                follower.sent_position = self._positions[index]
                yield Send(follower.peer, frame, self._positions[index])

    def _cursor_after(self, after: int, head: int) -> int | None:
        """The number of the first frame behind position `after`; None where frames between are not kept."""
        if after == head:
            return self._number + len(self._positions)
        if after > head or not self._positions or after < self._start:
            return None
        return self._number + bisect_right(self._positions, after, lo=self._first)

    def _let_go(self, head: int) -> list[Send]:
        """Keep within the budget, but always the newest frame; demote whose cursor falls out."""
        while self._kept_bytes > self.ring_bytes and self._first < len(self._frames) - 1:
            self._kept_bytes -= len(self._frames[self._first])
            self._frames[self._first] = b""
            self._start = self._positions[self._first]
            self._first += 1
        lowest = self._number + self._first
        demoted: list[Send] = []
        for follower in [each for each in self._followers.values() if each.cursor < lowest]:
            self.unfollow(follower.peer)
            stands = follower.sent_position
            self.demotions += 1
            demoted.append(Send(follower.peer, Demoted(*follower.partition, stands, head), stands))
        if self._first > len(self._frames) // 2:
            del self._frames[: self._first], self._positions[: self._first]
            self._number += self._first
            self._first = 0
        return demoted


def ring_share(partitions: int) -> int:
    """The ring of each of a broker's `partitions`, in bytes."""
    return max(MIN_RING_BYTES, min(RING_BYTES, RINGS_BYTES // max(1, partitions)))
