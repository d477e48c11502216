"""A partition that this broker owns: its core, its logs, and who follows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..consistency import vector
from ..consistency.vector import PartitionId
from ..errors import ParamstreamError
from ..eventlog.log import PartitionLog
from ..transport.messages import Heads
from .effects import Append
from .fanout import FanOutCore
from .load import Load
from .partition import PartitionCore

META: PartitionId = vector.META


@dataclass(slots=True)
class Owned:
    """A partition that this broker owns."""

    core: PartitionCore
    fanout: FanOutCore
    log: PartitionLog
    """Where events are appended and fetched from: under persistence "none" the broker's memory."""
    durable: PartitionLog
    """Where claims and epoch records go: the same log, but for "none"."""
    error: ParamstreamError | None = None
    """Why the partition stopped, if it did."""
    cut: str = ""
    """What a torn tail lost at the opening."""
    load: Load = field(default_factory=Load)

    @property
    def lasts(self) -> bool:
        """Its events go to a log that outlives the broker: any persistence but "none"."""
        return self.log is self.durable

    def append(self, effect: Append) -> None:
        """To the log that readers read; claims and epoch records of a "none" topic also to the one that lasts."""
        self.log.append(effect.frame)
        self.load.appended(len(effect.frame))
        if effect.lasting and not self.lasts:
            self.durable.append(effect.frame)

    def durable_in_memory(self) -> int:
        """How far a log in memory is durable by what was appended: under "none" that stands and falls with the epoch's beginning."""
        return self.log.sync() if self.lasts else self.core.durable

    def append_base_if_due(self) -> None:
        """Behind all that the core has returned to append: a full segment is closed by a base, which opens the next one."""
        if self.log.wants_base:
            self.log.append(self.core.base())

    def heads(self, monotonic_ns: int, sent: int = 0) -> Heads:
        core = self.core
        return Heads(*core.partition, core.accepted, core.durable, sent, core.time(monotonic_ns))
