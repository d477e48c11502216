"""The row tables of a replica, as its users meet them. Any thread, and no lock of the replica but where it is recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UnknownTopic
from ..events.arrays import Array
from ..events.recording import recorded_rows
from ..events.row_keys import Keys, row_keys
from ..transport.calls import TopicRecord
from .definitions import spec_of
from .live_state import LiveState
from .prefetching import Prefetcher, Prefetches
from .row_reads import FoundRows, RowReads, handed_out
from .status import TableStatus
from .table_files import rows_once, write_table

if TYPE_CHECKING:
    import torch

    from ..tiers.hbm import Held
    from .device_rows import DeviceRows

_T = TypeVar("_T")


class Tables:
    """Of the state partitions that one replica follows. Raises as the methods of `Replica` do."""

    def __init__(self, live: LiveState) -> None:
        self._live = live
        self.reads = RowReads(live.store, live.applier, live.scope.partitions)
        """Past what is recorded."""
        self._prefetcher = Prefetcher(live.name)

    def look_up(self, record: TopicRecord, table: str, keys: Keys) -> FoundRows:
        """As `RowReads.look_up`."""
        return self._recorded(record, table, keys, lambda: self.reads.look_up(record, table, keys))

    def hand_out(
        self, record: TopicRecord, table: str, keys: Any, device: str | torch.device | None
    ) -> tuple[Array, Array]:
        """The rows, and which are there, as `Replica.lookup` gives them."""
        flat = row_keys(table, keys)
        if device is None:
            values, found = self.look_up(record, table, flat)
            arrays = self._live.options.arrays
            return handed_out(values, arrays), handed_out(found, arrays)
        tensor, found = self._recorded(
            record, table, flat, lambda: self._on_device.look_up(record, table, flat, device)
        )
        return tensor, handed_out(found, "torch")

    @contextmanager
    def hold(self, record: TopicRecord, table: str, keys: Any) -> Generator[Held]:
        """As `Replica.hold_rows`."""
        flat = row_keys(table, keys)
        with ExitStack() as block:
            hold = self._on_device.hold(record, table, flat)
            yield self._recorded(record, table, flat, lambda: block.enter_context(hold))

    def prefetch(self, record: TopicRecord, table: str, keys: Any) -> bool:
        """As `Replica.prefetch`."""
        flat = row_keys(table, keys)
        self.reads.spec(record, table)

        def move(keys: Keys) -> int:
            moved = self.reads.prefetch(record, table, keys)
            return moved if self._live.store.hbm is None else moved + self._on_device.prefetch(record, table, keys)

        return self._prefetcher.add(move, flat)

    def prefetches(self) -> Prefetches:
        return self._prefetcher.counters()

    def status(self, record: TopicRecord, table: str) -> TableStatus:
        """As `Replica.table`."""
        for found in self.reads.tables(record):
            if found.table == table:
                return found
        raise _unknown(record, table)

    def export(self, record: TopicRecord, table: str, path: str | os.PathLike[str], *, state: bool) -> int:
        """As `Replica.export_table`."""
        live = self._live
        found = [(record.id, number) for number in live.scope.state_partitions(record)]
        defined = {p: tables[table] for p in found if table in (tables := live.applier.tables(p))}
        if not defined:
            raise _unknown(record, table)
        definition = next(iter(defined.values())).definition
        rows = (
            batch
            for partition in defined
            for batch in rows_once(live.store.rows(partition, table, spec_of(definition)), definition)
        )
        return write_table(Path(path), definition, rows, state=state)

    def close(self, timeout: float) -> None:
        """Nothing is prefetched any more."""
        self._prefetcher.close(timeout)

    @cached_property
    def _on_device(self) -> DeviceRows:
        from .device_rows import DeviceRows  # It imports torch.

        return DeviceRows(self._live.store, self.reads)

    def _recorded(self, record: TopicRecord, table: str, keys: Keys, read: Callable[[], _T]) -> _T:
        """What `read` gives of the rows under `keys`, and, in a replica that is recorded, of which positions they are."""
        recorder = self._live.recorder
        if recorder is None:
            return read()
        with self._live.sink.changed:
            rows = read()
            if not self._live.topics.closed:  # What a close has given back already is no miss.
                for number, key, position in self.reads.positions(record, table, keys[recorded_rows(keys)]):
                    recorder.reads_row((record.id, number), table, key, position)
            return rows


def _unknown(record: TopicRecord, table: str) -> UnknownTopic:
    return UnknownTopic("this replica knows no such table", topic=record.name, item=table)
