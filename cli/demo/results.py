"""What the demo knows of its actors at any moment, and the one object that it prints at the end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from .messages import Finished, Published, Ready, Report, Scored, Shown

RECENT = 30
"""Switches whose median is shown live: a second's worth."""


@dataclass(slots=True)
class Actor:
    """A trainer or a replica, as it last said of itself."""

    name: str
    version: int | None = None
    accuracy: float | None = None
    note: str = ""
    """What a reader of the table should know: killed, back."""
    ready: bool = False
    switches: int = 0
    """Of a replica, since it was last started."""
    finished: Finished | None = None
    recent_ms: deque[float] = field(default_factory=lambda: deque[float](maxlen=RECENT))

    def gone(self, note: str) -> None:
        """The process was killed; what it said before is no longer so."""
        self.version = self.accuracy = None
        self.ready = False
        self.switches = 0
        self.recent_ms.clear()
        self.note = note


@dataclass(frozen=True, slots=True)
class Restart:
    """The replica that was killed, and how it came back."""

    replica: str
    killed_at_version: int
    back_at_version: int
    back_after_s: float
    """From the kill until its network followed again; most of it is a new interpreter that imports torch."""


class Results:
    """Everything reported so far. Staleness is from the beginning of a publish until the network of a replica has it."""

    def __init__(self, replicas: list[str]) -> None:
        self.trainer = Actor("trainer")
        self.replicas = {name: Actor(name) for name in replicas}
        self.restart: Restart | None = None
        self.stale_ms: list[float] = []
        self._began_ns: dict[int, int] = {}
        self._shown: list[tuple[str, Shown]] = []

    @property
    def actors(self) -> list[Actor]:
        return [self.trainer, *self.replicas.values()]

    def take(self, name: str, report: Report) -> None:
        actor = self.trainer if name == self.trainer.name else self.replicas[name]
        match report:
            case Ready():
                actor.ready = True
                actor.version = report.version
            case Published():
                actor.version = report.version
                self._began_ns[report.version] = report.at_ns
                self._settle()
            case Shown():
                actor.version = report.version
                actor.switches += 1
                self._shown.append((name, report))
                self._settle()
            case Scored():
                actor.accuracy = report.accuracy
            case Finished():
                actor.version, actor.accuracy, actor.finished = report.version, report.accuracy, report
            case _:
                raise AssertionError(report)

    def lag(self, replica: Actor) -> int | None:
        """Versions between the trainer's and the replica's."""
        if replica.version is None or self.trainer.version is None:
            return None
        return max(0, self.trainer.version - replica.version)

    def digests_equal(self) -> bool:
        """Trainer and replicas have finished and hold the same, bit for bit: in their networks, and in all their state."""
        last = [actor.finished for actor in self.actors]
        if any(finished is None for finished in last):
            return False
        networks = {(finished.version, finished.digest) for finished in last if finished}
        states = {actor.finished.state_digest for actor in self.replicas.values() if actor.finished}
        return len(networks) == 1 and len(states) == 1

    def record(self, seconds: float) -> dict[str, object]:
        """The object of `--json`. `versions` counts all that were published; a digest is that of a network's bytes."""
        trainer = self.trainer.finished
        replicas = [(actor, actor.finished) for actor in self.replicas.values()]
        restart = self.restart
        return {
            "versions": len(self._began_ns),
            "replicas": [
                {
                    "name": actor.name,
                    "version": finished.version if finished else None,
                    "digest": finished.digest if finished else None,
                    "state_digest": finished.state_digest if finished else None,
                }
                for actor, finished in replicas
            ],
            "trainer": {
                "version": trainer.version if trainer else None,
                "digest": trainer.digest if trainer else None,
            },
            "digests_equal": self.digests_equal(),
            "restored_replica": restart.replica if restart else None,
            "restart": {
                "killed_at_version": restart.killed_at_version,
                "back_at_version": restart.back_at_version,
                "back_after_s": round(restart.back_after_s, 2),
            }
            if restart
            else None,
            "accuracy": {
                "trainer": trainer.accuracy if trainer else None,
                "replicas": [finished.accuracy if finished else None for _, finished in replicas],
            },
            "staleness_ms": {
                "p50": percentile(self.stale_ms, 50),
                "p99": percentile(self.stale_ms, 99),
                "samples": len(self.stale_ms),
            },
            "seconds": round(seconds, 1),
        }

    def _settle(self) -> None:
        """Replicas and trainer are heard over different pipes: a switch may be told before its publish."""
        waiting: list[tuple[str, Shown]] = []
        for name, shown in self._shown:
            began_ns = self._began_ns.get(shown.version)
            if began_ns is None:
                waiting.append((name, shown))
                continue
            late_ms = (shown.at_ns - began_ns) / 1e6
            self.stale_ms.append(late_ms)
            self.replicas[name].recent_ms.append(late_ms)
        self._shown = waiting


def percentile(values: list[float], percent: float) -> float | None:
    return round(float(np.percentile(values, percent)), 3) if values else None
