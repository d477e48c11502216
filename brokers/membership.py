"""What the log says of slots, brought into the broker's loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..eventlog.log import Member, Share
from ..transport.messages import Owner
from .ownership import Ownership
from .owning import Owning
from .posting import Post


class SlotMember:
    """A `SlotListener`: called in a thread of the log's."""

    def __init__(self, member: Member, owning: Owning, post: Post) -> None:
        self._broker = member.broker
        self._owning = owning
        self._post = post

    def revoking(self, done: Callable[[], None]) -> None:
        self._post(lambda: self._owning.revoke(done))

    def assigned(self, generation: int, shares: Sequence[Share]) -> None:
        mine = frozenset(slot for share in shares if share.broker == self._broker for slot in share.slots)
        ownership = Ownership(generation, mine, tuple(Owner(*share) for share in shares))
        self._post(lambda: self._owning.assign(ownership))
