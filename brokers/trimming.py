"""What nobody needs leaves the log: seldom while there is room, often where there is little."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from ..consistency.vector import PartitionId
from ..errors import ParamstreamError
from .calls import Calls
from .clients import Clients
from .copies import copied
from .owned import Owned
from .partitions import Partitions
from .reports import Reports
from .retention import LogUse
from .worker import Worker

_log = logging.getLogger(__name__)

TRIM_S, PRESSED_TRIM_S = 1.0, 0.02
"""How often what nobody needs leaves the log: seldom, and often while it is more than half full, so that a fast publisher of
versions is not refused for those that are old already."""


KEPT_FOR_OUTPUTS = 4
"""Inputs of processors leave a quarter of the log free."""


class Trimming:
    """In the loop's thread."""

    def __init__(
        self, partitions: Partitions, clients: Clients, calls: Calls, reports: Reports, worker: Worker,
        end_batch: Callable[[], None],
    ) -> None:  # fmt: skip
        """`end_batch` makes what was appended as durable as it can be now."""
        self._partitions = partitions
        self._clients = clients
        self._calls = calls
        self._reports = reports
        self._worker = worker
        self._end_batch = end_batch
        self._next = self._next_pressed = 0.0
        self._cutting: set[PartitionId] = set()
        """In the worker."""

    def tick(self, now: float) -> None:
        if now >= self._next or (now >= self._next_pressed and self._use().is_half_full):
            self._trim(now, self._use())

    def has_room(self, nbytes: int, *, is_input: bool = False) -> bool:
        """Whether the log takes so much more. Where it does not, what nobody needs leaves it first.

        `is_input`: of processors, whose outputs must have room yet, or they would never have the inputs behind them.
        """
        now, limit = time.monotonic(), self._partitions.limit
        most = limit - limit // KEPT_FOR_OUTPUTS if is_input else limit
        if self._partitions.nbytes + nbytes > most and now >= self._next_pressed:
            # What was appended in this batch may have made older versions needless, once it is durable.
            self._end_batch()
            self._trim(now, LogUse(limit, limit))
        return self._partitions.nbytes + nbytes <= most

    def _use(self) -> LogUse:
        return LogUse(self._partitions.nbytes, self._partitions.limit)

    def _trim(self, now: float, use: LogUse) -> None:
        self._next, self._next_pressed = now + TRIM_S, now + PRESSED_TRIM_S
        self._reports.forget_old()
        self._calls.forget_names(
            (name for peer in self._clients for name in peer.joined.values()),
            (peer.name for peer in self._clients),
        )
        for partition, owned in self._partitions.owned.items():
            if owned.error is not None or partition in self._cutting:
                continue
            leases, held = self._reports.leases(partition), copied(self._partitions, partition)
            floor = owned.core.trim_floor(leases, use, time.monotonic_ns(), held)
            if floor > owned.log.start:
                self._cut(owned, floor)

    def _cut(self, owned: Owned, floor: int) -> None:
        if not (self._partitions.log.shared and owned.lasts):
            try:
                start: int | ParamstreamError = owned.log.cut(floor)
            except ParamstreamError as error:
                start = error
            self._was_cut(owned, start)
            return
        # It asks over the network, and may wait.
        self._cutting.add(owned.core.partition)
        self._worker.do(partial(owned.log.cut, floor), partial(self._was_cut, owned))

    def _was_cut(self, owned: Owned, start: int | ParamstreamError) -> None:
        self._cutting.discard(owned.core.partition)
        if isinstance(start, ParamstreamError):
            _log.info("partition %016x/%d is not cut: %s", *owned.core.partition, start)
        elif self._partitions.owned.get(owned.core.partition) is owned:
            owned.core.trimmed(start)
