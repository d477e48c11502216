"""What the log says of slots, brought into the broker's loop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from ..eventlog.log import Member
from ..transport.messages import Owner
from .ownership import Ownership
from .owning import Owning
from .posting import Post

_log = logging.getLogger(__name__)

HANDOVER_S = 10.0
"""How long slots may be held back for what was accepted to become durable. Past that the log is in trouble, and decides for itself."""

LOOK_S = 0.05


class SlotMember:
    """A `SlotListener`: called in a thread of the log's."""

    def __init__(self, member: Member, owning: Owning, post: Post) -> None:
        self.member = member
        self._owning = owning
        self._post = post
        self._stopped = threading.Event()

    def revoking(self) -> None:
        done = threading.Event()
        self._post(lambda: self._owning.revoke(done.set))
        deadline = time.monotonic() + HANDOVER_S
        while not done.wait(LOOK_S) and not self._stopped.is_set():
            if time.monotonic() > deadline:
                _log.warning(
                    "slots go to other brokers before all that was accepted is durable: the log does not take it"
                )
                return

    def assigned(self, generation: int, owners: Mapping[Member, Sequence[int]]) -> None:
        mine = frozenset(owners.get(self.member, ()))
        told = tuple(
            Owner(member.broker, member.endpoint, tuple(sorted(slots))) for member, slots in sorted(owners.items())
        )
        self._post(lambda: self._owning.assign(Ownership(generation, mine, told)))

    def stopped(self) -> None:
        """The loop has ended, and all that it appended is durable: nobody need wait for it any more."""
        self._stopped.set()
