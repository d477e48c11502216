"""The tiered store of a replica: what it may hold, and where its versions and entries live.

with TieredStore(dram="4GiB") as store:
    table = store.entries((topic_id, partition))
    extents, total = lay_out({"w": 4096, "b": 64})
    slot = store.allocate(total)
    ...                                # one writer fills slot.buffer
    served = store.seal(7, position, digest, extents, slot)
    weights = served.private()         # a reader's own mapping
    store.usage().available_bytes
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from ..errors import InvalidEvent, ParamstreamError
from .arena import Arena, Slot
from .blobs import Blobs
from .budget import Budget
from .dense import DenseVersion, Extent, Home
from .entries import EntryTable
from .rows.spec import RowSpec
from .rows.table import RowTable
from .rows.tiered import TieredRowTable
from .sizes import parse_size
from .spill import Spill
from .ssd import SsdFolder, parse_ssd
from .usage import TierStatus

if TYPE_CHECKING:
    from .hbm import Hbm

Partition = tuple[int, int]
"""A state partition: the topic's id, and the partition's number."""


MAKE_ROOM_BYTES: Final = 8 << 20
"""What leaves at once between two events: several times what an event brings, and a matter of milliseconds."""

MAKE_ROOM_AGAIN_S: Final = 0.1
"""How long nothing is tried where nothing could leave."""


@dataclass(frozen=True, slots=True)
class TierUsage:
    """What one tier holds, in bytes. While nothing changes, `held` is the sum of the parts below it."""

    limit: int
    """The budget."""
    held: int
    """All that is charged to it."""
    dense_bytes: int
    """Slots of weights: taken, or released and still read by somebody."""
    entries_bytes: int
    """Keys, values and overheads of KV entries."""
    staging_bytes: int
    """What was charged by `charge_staging`: events held back, before-images."""
    free_bytes: int
    """Slots kept for reuse, which go as soon as their bytes are needed."""
    rows_bytes: int = 0
    """Row tables: pages of rows in use, free slots too, optimizers' state, positions and indexes."""
    hbm_bytes: int = 0
    """What the host keeps for the HBM tier: its index, and buffers of copies."""

    @property
    def available_bytes(self) -> int:
        """What can still be charged: the budget's rest, and the slots kept for reuse."""
        return self.limit - self.held + self.free_bytes


class TieredStore:
    """Items within a budget of bytes that covers all that is held: free slots, overheads, staging and kept versions too.

    One thread applies (allocates, writes entries); any number read entries and map slots at the same time. One store serves one
    replica at a time. Nothing here blocks, except that fresh memory for weights is faulted in (about 1 ms a MiB), and, where there is an
    ssd tier, for the disk: to make room in DRAM, and to read what lies on SSD.
    """

    def __init__(self, dram: int | str = "4GiB", hbm: int | str | None = None, ssd: str | None = None) -> None:
        """`dram`: the budget, in bytes or as `"4GiB"`; nothing is taken before it is needed.

        `hbm`: the same of a CUDA device's memory, for values of hot rows; taken at once. Needs torch; without CUDA it lies in the host's
        memory, and is not part of `dram`. What the host keeps for it (index, pinned buffers) is.

        `ssd="DIR:SIZE"`: a folder, made if need be, that this store has to itself until `close`, and how many bytes of it. What an
        earlier store left there is removed. Raises `InvalidEvent`, a `ValueError`, for what is no size or folder, `BindFailed` where
        another store has the folder, or it cannot be used.
        """
        self._budget = Budget(parse_size(dram), "dram")
        self._folder = None if ssd is None else SsdFolder(*parse_ssd(ssd))
        try:
            self._hbm = None if hbm is None else _hbm_of(parse_size(hbm), self._budget)
        except ParamstreamError:
            if self._folder is not None:
                self._folder.close()
            raise
        self._spill = None if self._folder is None else Spill(Blobs(self._folder))
        self._arena = Arena(self._budget)
        self._tables: dict[Partition, EntryTable] = {}
        self._row_tables: dict[Partition, dict[str, RowTable]] = {}
        self._versions: weakref.WeakSet[DenseVersion] = weakref.WeakSet()
        self._staging = 0
        self._closed = False
        self._user: str | None = None
        self._stay: Callable[[], Collection[DenseVersion]] = tuple
        self._lock = threading.Lock()
        self._moving = threading.Lock()
        """Held while versions leave: whoever needs room too does not move them a second time."""
        self._make_room_at = 0.0
        if self._spill is not None:
            self._budget.hint = self._why_nothing_leaves
            self._budget.reclaim_with(self._move_versions)
            self._budget.reclaim_with(self._move_values)
            self._budget.reclaim_with(self._move_rows)
        if self._folder is not None:
            self._folder.budget.reclaim_with(self._shrink_files)

    def claim(self, user: str, stay: Callable[[], Collection[DenseVersion]] = tuple) -> None:
        """`user` keeps its state here until `release`. `stay`, of any thread, says which versions do not leave DRAM by themselves.

        Raises `InvalidEvent` where another one does: they would mix theirs.
        """
        with self._lock:
            if self._closed:
                raise InvalidEvent(f"the store that {user!r} is given is closed", remedy="Give it an open one")
            if self._user is not None:
                raise InvalidEvent(
                    f"the store that {user!r} is given serves {self._user!r}",
                    remedy="Give each replica a store of its own, or close the other one first",
                )
            self._user, self._stay = user, stay

    def release(self) -> None:
        """The user that claimed the store has left nothing in it."""
        with self._lock:
            self._user, self._stay = None, tuple

    def entries(self, partition: Partition) -> EntryTable:
        """The KV entries of `partition`; an empty table is made on first use. `ValueError` after `close`."""
        table = self._tables.get(partition)
        if table is not None:
            return table
        with self._lock:
            if self._closed:
                raise ValueError("the store is closed")
            return self._tables.setdefault(partition, EntryTable(self._budget, self._spill))

    def rows(self, partition: Partition, name: str, spec: RowSpec) -> RowTable:
        """The row table `name` of `partition`, made on first use; `spec` counts only where it is made. `ValueError` after `close`."""
        table = self._row_tables.get(partition, {}).get(name)
        if table is not None:
            return table
        # Outside the lock: a first table may have kernels compiled, for seconds.
        table = self._new_row_table(name, spec)
        if self._hbm is not None:
            table.on_change = partial(self._hbm.changed, (partition[0], name))
        with self._lock:
            if self._closed:
                raise ValueError("the store is closed")
            # A new dict each time: whoever walks through the one before is not disturbed.
            tables = self._row_tables.get(partition, {})
            self._row_tables[partition] = {**tables, name: tables.get(name, table)}
            return self._row_tables[partition][name]

    def _new_row_table(self, name: str, spec: RowSpec) -> RowTable:
        try:
            if self._folder is None:
                return RowTable(name, spec, self._budget)
            return TieredRowTable(name, spec, self._budget, partial(self._folder.create, "rows"))
        except OSError as error:
            reason = f"the system has no addresses for table {name!r}: {error.strerror}"
            raise self._budget.full(0, because=reason) from error

    def row_tables(self, partition: Partition) -> Mapping[str, RowTable]:
        """The row tables of `partition` by name, as they are now, in the order of their first use. Any thread."""
        return MappingProxyType(self._row_tables.get(partition, {}))

    def drop_entries(self, partition: Partition) -> None:
        """Forgets a partition's tables, of entries and of rows, and gives their bytes back. By the applying thread."""
        with self._lock:
            table = self._tables.pop(partition, None)
            row_tables = self._row_tables.pop(partition, {})
        if table is not None:
            table.clear()
        for name, rows in row_tables.items():
            rows.clear()
            if self._hbm is not None:
                self._hbm.forget((partition[0], name))

    def allocate(self, nbytes: int) -> Slot:
        """Memory for one set of weights, `nbytes` long, faulted in. Content is undefined. The caller releases it.

        Raises `StorageFull` naming tier, asked, held and limit, with nothing changed; `ValueError` after `close`.
        """
        return self._arena.take(nbytes)

    def seal(
        self, version: int, position: int, digest: bytes, extents: Mapping[str, Extent], slot: Slot
    ) -> DenseVersion:
        """The version in a slot of this store that its one writer has filled. Where there is an ssd tier it may move there."""
        home = None if self._spill is None else Home(self.allocate, self._spill)
        sealed = DenseVersion(version, position, digest, extents, slot, home)
        with self._lock:
            self._versions.add(sealed)
        return sealed

    def make_room(self) -> None:
        """Where DRAM is above its high water mark, moves items to SSD, up to 8 MiB of them. Blocks for the disk. Any thread.

        To be called again and again: what is charged in between then rarely has to wait for the disk itself. Nothing happens
        without an ssd tier.
        """
        spill = self._spill
        if spill is None:
            return
        spill.blobs.settle()
        excess, now = self._budget.excess, time.monotonic()
        if excess and now >= self._make_room_at and not self._budget.reclaim(min(excess, MAKE_ROOM_BYTES)):
            self._make_room_at = now + MAKE_ROOM_AGAIN_S

    def trim(self) -> None:
        """Gives slots that are kept for reuse back to the system."""
        self._arena.give_back_free(self._budget.limit)

    def charge_staging(self, nbytes: int, *, forced: bool = False) -> None:
        """Counts `nbytes` that the caller is about to hold outside slots and tables. Raises `StorageFull` with nothing changed, unless
        `forced`, as for `Budget.charge`.
        """
        self._budget.charge(nbytes, forced=forced)
        with self._lock:
            self._staging += nbytes

    def refund_staging(self, nbytes: int) -> None:
        """Gives back bytes counted by `charge_staging`."""
        with self._lock:
            assert nbytes <= self._staging, f"refund of {nbytes} bytes of staging, {self._staging} are held"
            self._staging -= nbytes
        self._budget.refund(nbytes)

    @property
    def dram(self) -> Budget:
        """The budget of the DRAM tier."""
        return self._budget

    @property
    def hbm(self) -> Hbm | None:
        """The HBM tier; None where the store has none."""
        return self._hbm

    @property
    def spill(self) -> Spill | None:
        """How values and versions get to SSD, with its counts and its last error; None where the store has no ssd tier."""
        return self._spill

    @property
    def ssd(self) -> SsdFolder | None:
        """The folder of the ssd tier, with its budget; None where the store has none."""
        return self._folder

    def usage(self) -> TierUsage:
        """What the tier holds now. Any thread."""
        dense, free = self._arena.used_bytes, self._arena.free_bytes
        with self._lock:
            entries = sum(table.nbytes for table in self._tables.values())
            rows = sum(table.nbytes for tables in self._row_tables.values() for table in tables.values())
            above = 0 if self._hbm is None else self._hbm.usage().host_bytes
            return TierUsage(self._budget.limit, self._budget.held, dense, entries, self._staging, free, rows, above)

    def tiers(self) -> tuple[TierStatus, ...]:
        """Each tier of the store, DRAM first: what it holds, has moved, and failed to move. Any thread."""
        found = [TierStatus("dram", self._budget.limit, self._budget.held)]
        if self._folder is not None and self._spill is not None:
            budget, counts, tables = self._folder.budget, self._spill.counts, self._tiered_tables()
            moved = [table.counters().tiers for table in tables]
            found.append(
                TierStatus(
                    "ssd",
                    budget.limit,
                    budget.held,
                    place=budget.place,
                    read=counts.read + sum(rows.ssd_hits for rows in moved),
                    promoted=counts.promoted + sum(rows.promotions for rows in moved),
                    demoted=counts.demoted + sum(rows.demotions for rows in moved),
                    failed=counts.failed + sum(rows.failed_writes + rows.failed_reads for rows in moved),
                    error=self._spill.error or next((str(table.error) for table in tables if table.error), ""),
                )
            )
        if self._hbm is not None:
            found.append(self._hbm.status())
        return tuple(found)

    def close(self, timeout: float = 30.0) -> None:
        """Drops all entries and rows and gives all memory back; a second call does nothing. No descriptor of the store is left.

        Weights that somebody still reads stay valid, and take their memory with them when they are dropped. Waits, up to `timeout` s,
        for what the HBM tier is just bringing in, and as long for what is just read from SSD.
        """
        with self._lock:
            self._closed = True
            tables = list(self._tables.values())
            row_tables = [table for tables in self._row_tables.values() for table in tables.values()]
            self._tables.clear()
            self._row_tables.clear()
        for table in tables:
            table.clear()
        for rows in row_tables:
            rows.clear()
        if self._hbm is not None:
            self._hbm.close(timeout)
        self._arena.close()
        if self._spill is not None:
            self._spill.blobs.close()
        if self._folder is not None:
            self._folder.close(timeout)

    # What the budget calls, on any thread, with no lock held.

    def _move_versions(self, nbytes: int) -> int:
        """Versions that may leave go to SSD, the oldest first, and their slots back to the system. Returns bytes of DRAM."""
        with self._moving:
            return self._move_a_version(nbytes)

    def _move_a_version(self, nbytes: int) -> int:
        staying = {id(each) for each in self._stay()}
        with self._lock:
            known = [each for each in self._versions if each.is_resident and id(each) not in staying]
        for dense in sorted(known, key=lambda each: each.position):
            # One that is read gives nothing back before its readers let go.
            if not dense.is_read and dense.retain():
                try:
                    moved = dense.demote()
                finally:
                    dense.release()
                if moved and (given := self._arena.give_back_free(nbytes)):
                    return given
        return 0

    def _move_values(self, nbytes: int) -> int:
        given = 0
        for table in list(self._tables.values()):
            if given < nbytes:
                given += table.evict(nbytes - given)
        return given

    def _move_rows(self, nbytes: int) -> int:
        # The largest first: what is cold in a small one is worth less.
        for table in sorted(self._tiered_tables(), key=lambda each: (each.is_short, -each.nbytes)):
            if given := table.give_back(nbytes):
                return given
        return 0

    def _shrink_files(self, nbytes: int) -> int:
        """Of the ssd tier: what rows took there and no longer need, also at those that hold a table's locks."""
        given = 0
        for table in self._tiered_tables():
            if given < nbytes:
                given += table.shrink()
        return given

    def _tiered_tables(self) -> list[TieredRowTable]:
        with self._lock:
            tables = [table for tables in self._row_tables.values() for table in tables.values()]
        return [table for table in tables if isinstance(table, TieredRowTable)]

    def _why_nothing_leaves(self) -> str:
        assert self._spill is not None
        return self._spill.hint

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _hbm_of(limit: int, dram: Budget) -> Hbm:
    """Raises `InvalidEvent` where torch is not installed, and `StorageFull` where the device has not that much."""
    try:
        from .hbm import Hbm  # torch is optional, and slow to import.
    except ImportError as error:
        raise InvalidEvent(f"the HBM tier needs torch: {error}", remedy="Install paramstream[torch]") from error
    return Hbm(limit, dram)
