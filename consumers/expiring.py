"""Deletes rows that were not written for the time that their table says, as a broker's keeper does it.

Nothing local decides state, so no replica drops a row by its own clock: the keeper publishes deletions, like any other producer, and
each replica applies them where they stand in the stream. A deletion names the position up to which rows count as old (`up_to`): a row
that is written before it is sequenced stays. So it is always right, whoever sends it, twice or late. Time is that of the partition.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..consistency.position import START
from ..consistency.vector import PartitionId
from ..errors import CorruptLog, ParamstreamError
from ..eventlog.marks import storage_error
from ..tiers.rows.table import RowTable
from ..tiers.store import TieredStore
from .applying import Applier
from .definitions import Defined, spec_of
from .replica_sink import ReplicaSink
from .snapshots.folder import topic_folder
from .subscription_core import SubscriptionCore
from .time_marks import TimeMarks, decode_marks, encode_marks

_log = logging.getLogger(__name__)

Keys = npt.NDArray[np.int64]
Delete = Callable[[str, str, Keys, int], None]
"""(topic, table, keys, up_to): deletes these rows where they were last written at or below `up_to`. Returns once that will not be lost;
raises `ParamstreamError`."""

KEYS_AT_ONCE = 65536
"""Of one deletion."""

ROWS_AT_ONCE = 16384
"""Looked at in one go."""

PACE = 8
"""Looking for old rows takes no more than about this part of the time."""

SAVE_S = 5.0
"""How often the marks are saved, where there are new ones. What is lost with a process makes rows expire later."""


class Expiring:
    """Of one topic, beside a keeper's replica. One thread."""

    NAME = "times"

    def __init__(
        self,
        sink: ReplicaSink,
        core: SubscriptionCore,
        applier: Applier,
        store: TieredStore,
        topic: tuple[str, int],
        root: Path,
        delete: Delete,
    ) -> None:
        """`topic`: name and id. `root`: the keeper's folder, where the marks of time are kept beside the topic's snapshots."""
        self._sink = sink
        self._core = core
        self._applier = applier
        self._store = store
        self._topic, self._id = topic
        self._path = topic_folder(root, self._topic, self._id) / self.NAME
        self._delete = delete
        self._marks = self._read()
        self._done: dict[tuple[PartitionId, str], int] = {}
        """Rows of a table up to there were looked at, and those that were old deleted."""
        self._next_at = 0.0
        self._is_new = False
        self._saved_at = 0.0

    def step(self, partitions: list[PartitionId], clock: Callable[[], float]) -> None:
        """Take a look, and delete what is old in `partitions`. `clock` is monotonic, in seconds, and only sets the pace.

        Raises what deleting raises, and `StorageFull` or `CorruptLog` where the marks cannot be saved: the next step tries again.
        """
        self._look()
        if clock() >= self._next_at:
            began = clock()
            for partition in partitions:
                self._expire(partition)
            self._next_at = clock() + PACE * (clock() - began)
        if self._is_new and clock() >= self._saved_at + SAVE_S:
            self._save()
            self._saved_at = clock()

    def close(self) -> None:
        """Saves the marks, as far as that is possible."""
        if self._is_new:
            try:
                self._save()
            except ParamstreamError as error:
                _log.warning("rows of %s will expire later: %s", self._topic, error)

    def _tables(self, partition: PartitionId) -> list[Defined]:
        tables = self._applier.tables(partition).values()
        return [defined for defined in tables if defined.definition.expire_after_ns is not None]

    def _look(self) -> None:
        """Note where the partitions stand whose rows expire."""
        with self._sink.changed:
            # What owners last said of their time. Nothing is added for the time since: that would be by this machine's clock.
            looked = [
                (partition, self._core.position(partition), self._sink.clock.get(partition))
                for partition in self._core.partitions()
                if partition[0] == self._id and self._tables(partition)
            ]
        for partition, position, now in looked:
            if now is not None:
                self._is_new |= self._marks.setdefault(partition[1], TimeMarks()).look(position, now[0])

    def _expire(self, partition: PartitionId) -> None:
        now, marks = self._sink.clock.get(partition), self._marks.get(partition[1])
        for defined in self._tables(partition) if now is not None and marks is not None else ():
            assert now is not None and marks is not None
            definition = defined.definition
            assert definition.expire_after_ns is not None
            up_to = marks.older(now[0] - definition.expire_after_ns)
            if up_to <= self._done.get((partition, definition.table), START):
                continue
            rows = self._store.rows(partition, definition.table, spec_of(definition))
            for keys in _old(rows, up_to):
                self._delete(self._topic, definition.table, keys, up_to)
            self._done[partition, definition.table] = up_to

    def _read(self) -> dict[int, TimeMarks]:
        try:
            return decode_marks(self._path.read_bytes(), self._id, str(self._path))
        except FileNotFoundError:
            return {}
        except (CorruptLog, OSError) as error:
            _log.warning("rows of %s will expire later: %s", self._topic, error)
            return {}

    def _save(self) -> None:
        aside = self._path.with_name(f".{self.NAME}.partial")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                file.write(encode_marks(self._id, self._marks))
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self._path)
        except OSError as error:
            raise storage_error("save", self._path, error) from error
        self._is_new = False


def _old(rows: RowTable, up_to: int) -> Iterator[Keys]:
    """The keys of rows that were last written at or below a position, so many at a time."""
    found = list[Keys]()
    for batch in rows.scan(ROWS_AT_ONCE):
        keys = batch.keys[batch.positions <= np.uint64(up_to)]
        if len(keys):
            found.append(keys)
        if sum(map(len, found)) >= KEYS_AT_ONCE:
            yield np.concatenate(found)
            found.clear()
    if found:
        yield np.concatenate(found)
