"""The HBM tier: the slab on the device, the tables that share it, and the one thread that writes into it.

    hbm = Hbm("2GiB", dram_budget)
    table = hbm.table((topic, "users"), 64, "float32", below)     # below(keys) -> values, found
    rows, found = table.lookup(keys)            # on the device
    hbm.prefetch(table, keys)                   # brought in when this returns
    hbm.close()

Everybody else asks the writer (`paramstream-hbm`). What nobody waits for is bounded: past that it is passed over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, final

import torch

from ...errors import InvalidEvent, ParamstreamError, ParamstreamTimeout, StorageFull
from ..budget import Budget
from ..usage import TierStatus
from .copying import Copier, staging_bytes
from .lanes import Lane, callers_lane, side_lane
from .slab import Slab
from .slots import Keys
from .table import Below, HbmCounters, HbmTable

Name = tuple[int, str]
"""A topic's id, and a table's name: rows of all its partitions lie together."""

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
class _Task:
    """What the writer is to do; it gives how many rows came in."""

    work: Callable[[], int]
    of: HbmTable | None
    done: Future[int] | None
    """None where nobody waits for it."""
    keys: int = 0
    """How many are waiting with it, where nobody waits for it."""


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
        self._named: dict[Name, HbmTable] = {}
        self._tables: list[HbmTable] = []
        """All that have pages, those too that are forgotten and still read."""
        self._tasks: deque[_Task] = deque()
        self._waiting_keys = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def device(self) -> torch.device:
        """Where the rows lie."""
        return self.slab.device

    # --- tables ---------------------------------------------------------------------------------------------------------------

    def table(self, name: Name, dim: int, dtype: str, below: Below) -> HbmTable:
        """The table of that name; on first use a new one, empty, that takes memory of the slab as rows come in.

        Raises `ParamstreamError` where the tier is closed.
        """
        with self._changed:
            self._check_open()
            table = self._named.get(name)
            if table is None:
                table = self._named[name] = HbmTable(self, dim, dtype, below)
                self._tables.append(table)
            return table

    def changed(self, name: Name, keys: Keys) -> None:
        """Rows change below, as `HbmTable.drop` has it; nothing happens where there is no such table."""
        table = self._named.get(name)
        if table is not None:
            table.drop(keys)

    def forget(self, name: Name) -> None:
        """The table is gone below: its rows are found no more, and its memory is others' as soon as nobody reads it. Never waits."""
        with self._changed:
            table = self._named.pop(name, None)
            if table is None:
                return
            if not self._closed:
                self._add(_Task(lambda: self._take_pages(table), None, None))
        table.close()

    # --- what the writer is asked for -------------------------------------------------------------------------------------------

    def ask(self, table: HbmTable, keys: Keys, *, again: bool = False) -> bool:
        """Rows of `keys` are wanted; the writer brings them when it can. False where it has too much to do, or the tier is closed."""
        with self._changed:
            if self._closed or self._waiting_keys + len(keys) > MAX_ASKED_KEYS:
                return False
            self._waiting_keys += len(keys)
            self._add(_Task(lambda: table.bring(keys, again=again), table, None, len(keys)))
            return True

    def prefetch(self, table: HbmTable, keys: Keys, timeout: float = 30.0) -> int:
        """Brings rows in; blocks until they are there, and returns how many came. Those that found no slot are read around the tier.

        Raises what reading below raised, `ParamstreamTimeout` after `timeout` s, and `ParamstreamError` where the tier is closed.
        """
        return self._do(lambda: table.bring(keys), timeout)

    def settle(self, timeout: float = 30.0) -> None:
        """Blocks until the writer has done all that it was asked for by now. Raises `ParamstreamTimeout` after `timeout` s."""
        self._do(lambda: 0, timeout)

    def usage(self) -> HbmUsage:
        """Of this moment. Any thread."""
        tables = list(self._tables)
        host = self._staging_bytes + sum(table.host_bytes for table in tables)
        rows = sum(len(table) for table in tables)
        return HbmUsage(str(self.device), self._budget.limit, self._budget.held, rows, host)

    def counters(self) -> HbmCounters:
        """Of all tables together that are there."""
        return HbmCounters.sum(table.counters() for table in list(self._named.values()))

    def status(self) -> TierStatus:
        """For whoever looks at a store's tiers. Of what it reads and cannot read; rows never leave for good, the tiers below have them."""
        counters = self.counters()
        return TierStatus(
            "hbm",
            self._budget.limit,
            self._budget.held,
            place=str(self.device),
            read=counters.hits,
            failed=counters.failures,
        )

    def close(self, timeout: float = 30.0) -> None:
        """Ends the writer and gives the memory back. Tensors that were handed out stay. A second call changes nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)
        for task in self._tasks:
            if task.done is not None:
                task.done.set_exception(ParamstreamError("the HBM tier was closed"))
        self._tasks.clear()
        self._dram.refund(self._staging_bytes + sum(table.host_bytes for table in self._tables))
        for table in self._named.values():
            table.close()
        for table in self._tables:
            # The memory may be somebody else's as soon as it is given back.
            table.drain()
        self._named.clear()
        self._tables.clear()
        self.slab.release()
        self._budget.refund(self._budget.held)

    # --- the writer -----------------------------------------------------------------------------------------------------------

    def page_for(self, table: HbmTable) -> int | None:
        """A page that nobody has, or one of a table that has more than its share while this one has less."""
        charged = table.bytes_for_page()
        try:
            self._dram.charge(charged)
        except StorageFull:
            return None
        page = self.slab.take()
        if page is None:
            page = self._page_of_another(table)
        if page is None:
            self._dram.refund(charged)
        return page

    def _page_of_another(self, table: HbmTable) -> int | None:
        for other in [each for each in self._tables if each.is_closed]:
            self._take_pages(other)
        page = self.slab.take()
        share = self.slab.pages // len(self._tables)
        for other in sorted(self._tables, key=lambda each: each.pages, reverse=True):
            if page is None and other.pages > share > table.pages:
                page = other.give_up_page()
        return page

    def _take_pages(self, table: HbmTable) -> int:
        """Of a closed table, what nobody reads any more; when that is all of it, it is no more."""
        while (page := table.give_up_page()) is not None:
            self.slab.give(page)
        if not table.pages and table in self._tables:
            self._tables.remove(table)
            self._dram.refund(table.host_bytes)
        return 0

    def _do(self, work: Callable[[], int], timeout: float) -> int:
        done: Future[int] = Future()
        with self._changed:
            self._check_open()
            self._add(_Task(work, None, done))
        try:
            return done.result(timeout)
        except TimeoutError:
            raise ParamstreamTimeout(f"the writer of the HBM tier was not done within {timeout} s") from None

    def _check_open(self) -> None:
        if self._closed:
            raise ParamstreamError("the HBM tier is closed", remedy="Make another store")

    def _add(self, task: _Task) -> None:
        self._tasks.append(task)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="paramstream-hbm", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _write(self) -> None:
        while (task := self._next()) is not None:
            try:
                came = task.work()
            except (ParamstreamError, OSError, RuntimeError) as error:
                # Rows that cannot be read are not brought in. Who reads them is told by the tiers below.
                if task.done is not None:
                    task.done.set_exception(error)
                elif task.of is not None:
                    task.of.failed()
            else:
                if task.done is not None:
                    task.done.set_result(came)

    def _next(self) -> _Task | None:
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._closed)
            if self._closed:
                return None
            task = self._tasks.popleft()
            self._waiting_keys -= task.keys
            return task
