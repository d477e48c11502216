"""The calls of a session whose turn has not come, in the order in which they were made."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..events.kinds import Put, PutItem
from ..events.limits import MAX_CHUNK_BYTES
from .calls import Call, Draft


class CallQueue:
    """First in, first out. The first call may have started: it stays until its last event is in flight."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()
        self.nbytes = 0
        """Bytes of all drafts."""

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def first(self) -> Call:
        return self._calls[0]

    @property
    def waiting(self) -> int:
        """Calls with events that have no sequence yet."""
        return sum(1 for call in self._calls if call.drafts)

    def calls(self) -> list[Call]:
        return list(self._calls)

    def push(self, call: Call) -> None:
        self._calls.append(call)

    def pop(self) -> Call:
        return self._calls.popleft()

    def add(self, call: Call, draft: Draft) -> None:
        call.drafts.append(draft)
        call.unsettled += 1
        self.nbytes += draft.nbytes

    def drop(self, call: Call) -> None:
        """Nothing more of `call` is sent."""
        call.unsettled -= len(call.drafts)
        self.nbytes -= sum(draft.nbytes for draft in call.drafts)
        call.drafts.clear()

    def clear(self) -> None:
        for call in self._calls:
            call.drafts.clear()
        self._calls.clear()
        self.nbytes = 0

    def keep_last(self) -> None:
        """Copy what the newest call left in the queue: it may still be its caller's memory."""
        if self._calls:
            for draft in self._calls[-1].drafts:
                draft.keep()

    def next_draft(self, call: Call) -> Draft:
        draft = call.drafts.popleft()
        self.nbytes -= draft.nbytes
        return draft

    def joined_puts(self, room_bytes: int, most: int) -> tuple[Draft, list[Call]]:
        """The put at the front as one draft with those behind it that go to the same partition, at most `most` calls.

        The order of the puts is kept: within one event the last put of a key wins, as it would have by itself.
        """
        group = [self._calls.popleft()]
        first = group[0].drafts[0]
        nbytes = first.nbytes
        while self._calls and len(group) < most:
            call = self._calls[0]
            if not call.joinable or call.partitions != group[0].partitions or call.drafts[0].source != first.source:
                break
            nbytes += call.drafts[0].nbytes
            if nbytes > min(MAX_CHUNK_BYTES, room_bytes):
                break
            group.append(self._calls.popleft())
        drafts = [self.next_draft(call) for call in group]
        return drafts[0] if len(drafts) == 1 else _one_put(drafts), group


def _one_put(drafts: Sequence[Draft]) -> Draft:
    items: list[PutItem] = []
    for draft in drafts:
        assert isinstance(draft.payload, Put)
        items.extend(draft.payload.items)
    bulk = tuple(piece for draft in drafts for piece in draft.bulk)
    nbytes = sum(draft.nbytes for draft in drafts)
    return Draft(drafts[0].partition, Put(tuple(items)), bulk, nbytes, drafts[0].source, all(d.owned for d in drafts))
