"""The HBM tier: the slab on the device, the tables that share it, and the one thread that writes into it.

    hbm = Hbm("2GiB", dram_budget)
    table = hbm.table(64, "float32", below)     # below(keys) -> values, found
    rows, found = table.lookup(keys)            # on the device
    hbm.prefetch(table, keys)                   # brought in when this returns
    hbm.close()

Everybody else asks the writer (`paramstream-hbm`). What nobody waits for is bounded: past that it is passed over.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import torch

from ...errors import InvalidEvent, ParamstreamError, StorageFull
from ..budget import Budget
from .copying import Copier, staging_bytes
from .lanes import Lane, callers_lane, side_lane
from .slab import Slab
from .slots import Keys
from .table import Below, HbmTable

MAX_ASKED_KEYS: Final = 1 << 20
"""Keys that wait for the writer and nobody waits for: of some seconds."""


@dataclass(frozen=True, slots=True)
class HbmUsage:
    """What the tier holds, in bytes."""

    device: str
    limit: int
    """The budget, of the device's memory."""
    held: int
    """Taken from the device: the slab, and what copies pass through."""
    rows: int
    """Rows that look-ups find on the device."""
    host_bytes: int
    """Charged to DRAM for it: index, queues, and pinned buffers."""


@dataclass(frozen=True, slots=True)
class _Wish:
    table: HbmTable
    keys: Keys
    done: Future[int] | None
    again: bool = False


@final
class Hbm:
    """Memory of `device` within `limit` bytes, for rows of any number of tables. Thread-safe."""

    def __init__(
        self,
        limit: int,
        dram: Budget,
        device: torch.device | None = None,
        side: Lane | None = None,
        callers: Lane | None = None,
    ) -> None:
        """Takes the whole budget from the device at once. Without CUDA the device is the CPU.

        `dram` is charged for what the host keeps. `side` and `callers` are the lanes of the writer and of readers, for tests.
        Raises `StorageFull` where the device or DRAM has not that much.
        """
        device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        on_device, self._staging_bytes = staging_bytes(device)
        if limit <= on_device:
            raise InvalidEvent(
                f"hbm={limit}: copies alone take {on_device} bytes of it", remedy="Give the tier more, or none"
            )
        self._budget = Budget(limit, "hbm")
        self._dram = dram
        dram.charge(self._staging_bytes)
        self._budget.charge(limit)
        try:
            self.slab = Slab(torch.empty(limit - on_device, dtype=torch.uint8, device=device))
            self.copier = Copier(device, side or side_lane(device))
        except RuntimeError as error:  # torch's error for memory that is not there
            dram.refund(self._staging_bytes)
            raise self._budget.full(limit, f"the device says: {error}") from error
        self.callers_lane = callers or callers_lane(device)
        self._tables: list[HbmTable] = []
        self._wishes: deque[_Wish] = deque()
        self._asked = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def table(self, dim: int, dtype: str, below: Below) -> HbmTable:
        """A new table, empty, that takes memory of the slab as rows come in. Dropped by `forget`."""
        table = HbmTable(self, dim, dtype, below)
        with self._changed:
            self._tables.append(table)
        return table

    def forget(self, table: HbmTable) -> None:
        """The table is gone below: its rows go, and its memory as soon as nobody reads it and others need it."""
        table.clear()

    def ask(self, table: HbmTable, keys: Keys, *, again: bool = False) -> bool:
        """Rows of `keys` are wanted; the writer brings them when it can. False where it has too much to do, or the tier is closed."""
        with self._changed:
            if self._closed or self._asked + len(keys) > MAX_ASKED_KEYS:
                return False
            self._asked += len(keys)
            self._wish(_Wish(table, keys, None, again))
            return True

    def prefetch(self, table: HbmTable, keys: Keys, timeout: float = 30.0) -> int:
        """Brings rows in; blocks until they are there, and returns how many came. Those that found no slot are read around the tier.

        Raises what reading below raised, `TimeoutError` after `timeout` s, and `ParamstreamError` where the tier is closed.
        """
        done: Future[int] = Future()
        with self._changed:
            if self._closed:
                raise ParamstreamError("the HBM tier is closed", remedy="Make another store")
            self._wish(_Wish(table, keys, done))
        return done.result(timeout)

    def settle(self, timeout: float = 30.0) -> bool:
        """Blocks until the writer has done all that it was asked for by now, for tests and figures; whether it did."""
        done: Future[int] = Future()
        with self._changed:
            if self._closed or self._thread is None:
                return True
            self._wish(_Wish(self._tables[0], np.empty(0, np.int64), done))
        try:
            done.result(timeout)
        except TimeoutError:
            return False
        return True

    def usage(self) -> HbmUsage:
        """Of this moment. Any thread."""
        tables = list(self._tables)
        host = self._staging_bytes + sum(table.host_bytes for table in tables)
        rows = sum(len(table) for table in tables)
        return HbmUsage(str(self.slab.device), self._budget.limit, self._budget.held, rows, host)

    def page_for(self, table: HbmTable) -> int | None:
        """For the writer alone: a page that nobody has, or one of a table that has more than its share while this one has less."""
        charged = table.bytes_for_page()
        try:
            self._dram.charge(charged)
        except StorageFull:
            return None
        page = self.slab.take()
        if page is None:
            share = self.slab.pages / len(self._tables)
            richest = max(self._tables, key=lambda each: each.pages)
            if table.pages + 1 <= share and richest.pages > share:
                page = richest.give_up_page()
        if page is None:
            self._dram.refund(charged)
        return page

    def close(self, timeout: float = 30.0) -> None:
        """Ends the writer and gives the memory back. Tensors that were handed out stay. A second call changes nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)
        for wish in self._wishes:
            if wish.done is not None:
                wish.done.set_exception(ParamstreamError("the HBM tier was closed"))
        self._wishes.clear()
        self._dram.refund(self._staging_bytes + sum(table.host_bytes for table in self._tables))
        self._budget.refund(self._budget.held)

    def _wish(self, wish: _Wish) -> None:
        self._wishes.append(wish)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="paramstream-hbm", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _write(self) -> None:
        while (wish := self._next()) is not None:
            try:
                came = wish.table.bring(wish.keys, again=wish.again)
            except (ParamstreamError, OSError, RuntimeError) as error:
                # Rows that cannot be read are not brought in. Who reads them is told by the tiers below.
                if wish.done is not None:
                    wish.done.set_exception(error)
                else:
                    wish.table.failed()
            else:
                if wish.done is not None:
                    wish.done.set_result(came)

    def _next(self) -> _Wish | None:
        with self._changed:
            self._changed.wait_for(lambda: self._wishes or self._closed)
            if self._closed:
                return None
            wish = self._wishes.popleft()
            if wish.done is None:
                self._asked -= len(wish.keys)
            return wish
