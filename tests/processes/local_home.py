"""A local log in a folder, with the broker's machine around it: power failures, a full disk, a clock that is stepped."""

from __future__ import annotations

import random
import time
from pathlib import Path

import paramstream as ps

from .child import Child
from .logs import read_folder
from .power import cut_back
from .reference import Reference

LOG_LIMIT = 1 << 30
ASK_S = 30.0
CLOCKS_S = (0, 0, 0, -3600, 60, 3600)
"""How far the clock may be off after a restart."""
ROOM_BYTES = 100_000
"""A disk that fills has at most so much room left: for some events, and a part of the next one."""


class LocalHome:
    """One broker at a time has the log."""

    brokers = ("broker",)
    others: tuple[str, ...] = ()
    progress_s = 30.0

    def __init__(self, folder: Path, chance: random.Random, *, power: bool = False) -> None:
        """`power`: a broker's death is a power failure each time, before which the disk may be full, or stand still: files lose
        what was not synced, and the machine boots anew."""
        self._folder = folder / "log"
        self._chance = chance
        self._power = power
        self._boots = 0
        self.refusals = ("StorageFull",) if power else ()

    def may_lose(self, persistence: str) -> bool:
        """Something that was accepted may be lost, and is called so."""
        return self._power and persistence == "write_back"

    def harm(self, what: str) -> None:
        raise AssertionError(f"there is no {what}")

    def start_broker(self, name: str, endpoint: str, errors: Path) -> Child:
        clock_s = self._chance.choice(CLOCKS_S)
        return Child("broker", self._folder, endpoint, f"boot-{self._boots}", LOG_LIMIT, clock_s, errors=errors)

    def kill_broker(self, child: Child, *, is_up: bool) -> None:
        if self._power and is_up:
            trouble = self._chance.choice(("none", "fill", "hold"))
            if trouble == "fill":
                child.ask("fill", ASK_S, room=self._chance.randrange(ROOM_BYTES))
            elif trouble == "hold":
                child.ask("hold", ASK_S)
            # The longer, the more there is that was not synced, and any write may be the one that has no room.
            time.sleep(self._chance.uniform(0.0, 0.3))
        child.kill()
        if self._power:
            self._boots += 1
            cut_back(self._folder, self._chance)

    def read(self, topic: ps.TopicInfo) -> Reference:
        return read_folder(self._folder, topic, constant=True)
