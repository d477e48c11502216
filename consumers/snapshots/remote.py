"""State that has left the log, from the announced snapshot of the broker's keeper: asked for piece by piece, and proved.

The broker gives pieces of files of its keeper's newest announced snapshot, and of nothing else. What comes is believed only as
far as the digests go: the manifest's own, and those of its files.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import msgspec

from ...consistency.position import show
from ...consistency.vector import PartitionId, VersionVector
from ...errors import CorruptLog, LogTruncated, ParamstreamError, ParamstreamTimeout
from ...events.codec import encode_vector
from ...events.manifest import (
    MAX_MANIFEST_BYTES,
    FileRecord,
    Manifest,
    StateRecord,
    decode_manifest,
    digest_of,
    vector_of,
)
from ...tiers.entries import Entry
from ...tiers.rows.batch import RowBatch
from ...transport.calls import PartitionRecord
from ...transport.messages import FetchFile, Report
from ..applying import Applier
from ..links import MakeLink
from ..pages import Pager
from ..scope import time_left
from .entry_pages import decode_page
from .row_pages import decode_rows
from .seeding import Seed, StateSeed, defined_in

_log = logging.getLogger(__name__)

PIECE_BYTES = 4 * 1024 * 1024
"""Asked for at a time."""

HOLD_S = 5.0
"""How often the log is told what is needed of it meanwhile: long before a lease ends."""

MAX_FILE_BYTES = 1 << 31
"""Of one page of entries or rows: a broker that says more is not believed."""


class KeeperCopies:
    """Reads the snapshots of a broker's keeper over a link of its own. A context manager; one thread."""

    def __init__(self, make_link: MakeLink, name: str, deadline: float) -> None:
        """`name`: of the replica that is to begin, which holds what it needs of the log meanwhile. Raises `ConnectFailed`."""
        self._name = name
        self._deadline = deadline
        self._needs: dict[PartitionId, int] = {}
        """Partition → the position whose copy was taken, or is: what lies behind it is still needed of the log."""
        self._held_at = 0.0
        self._pager = Pager(make_link, f"snapshot-{name}", lambda: time_left(deadline))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pager.close()

    def fill(self, topic: str, partition: PartitionId, at: PartitionRecord, applier: Applier) -> Seed:
        """Put a partition's entries and rows in place; returns where they stand.

        The keeper of the partition's owner is asked first, then those of the other brokers: slots move, folders do not. Where a
        keeper has removed the snapshot that was read, a newer one is; where it is damaged, the one before. Raises
        `LogTruncated` where no snapshot reaches back to the log's start, `CorruptLog` where all are damaged, `ParamstreamTimeout`.
        """
        return self._of_any(lambda other: self._fill(topic, partition, at, applier, other))

    def _fill(self, topic: str, partition: PartitionId, at: PartitionRecord, applier: Applier, other: int) -> Seed:
        damaged: list[CorruptLog] = []
        while True:
            try:
                seed = self._seed(topic, partition, at, len(damaged), other)
            except LogTruncated:
                if damaged:
                    raise damaged[0] from None
                raise
            except CorruptLog as error:
                damaged.append(error)
                continue
            (state,) = seed.state
            try:
                state.fill(applier)
            except LogTruncated:
                if time.monotonic() > self._deadline:
                    raise
            except CorruptLog as error:
                _log.warning("a snapshot of the keeper is passed over: %s", error)
                damaged.append(error)
            else:
                return seed

    def below(self, topic: str, partition: PartitionId, at: PartitionRecord, until: int) -> Seed:
        """A partition's copy whose ceiling lies at or below `until`: the newest such one that the keeper has.

        Its entries and rows are read, and proved, as they are asked for. Raises `LogTruncated` where there is none, `ParamstreamTimeout`.
        """
        return self._of_any(lambda other: self._below(topic, partition, at, until, other))

    def _below(self, topic: str, partition: PartitionId, at: PartitionRecord, until: int, other: int) -> Seed:
        for skip in itertools.count():
            try:
                seed = self._seed(topic, partition, at, skip, other)
            except CorruptLog as error:
                _log.warning("a snapshot of the keeper is passed over: %s", error)
                continue
            if seed.targets[partition] <= until:
                return seed
        raise AssertionError("the keeper has a first snapshot")

    def _of_any(self, read: Callable[[int], Seed]) -> Seed:
        """What the first keeper gives that has it; the error of the owner's where none has."""
        errors: list[ParamstreamError] = []
        while len(errors) < self._pager.brokers:
            try:
                return read(len(errors))
            except (LogTruncated, CorruptLog) as error:
                errors.append(error)
        raise errors[0]

    def _seed(self, topic: str, partition: PartitionId, at: PartitionRecord, skip: int, other: int) -> Seed:
        """Of the keeper's newest snapshot but `skip`."""
        manifest, digest = self._manifest(topic, partition, skip, other)
        state = manifest.state_of(partition[1])
        if manifest.topic_id != partition[0] or state is None:
            raise LogTruncated(
                "the keeper's snapshot does not hold the partition",
                topic=topic,
                partition=partition[1],
                position=at.start,
            )
        if state.floor < at.start:
            raise LogTruncated(
                f"the log begins behind {show(at.start)}, and the keeper's newest snapshot at {show(state.floor)}",
                topic=topic,
                partition=partition[1],
                position=at.start,
                remedy="Begin again once the keeper has made another one",
            )
        self._needs[partition] = state.floor
        self._hold()
        copy = StateSeed(
            partition,
            state.floor,
            state.ceiling,
            lambda: self._entries(partition, digest, state, other),
            defined_in(state),
            lambda: self._rows(partition, digest, state, other),
        )
        seed = Seed(partition[0], vector_of(manifest.context), [copy])
        seed.check(at, topic, manifest.persistence)
        return seed

    def _hold(self) -> None:
        """The log must not be cut above the floors while copies are on their way: the replica that is still to come says so."""
        self._held_at = time.monotonic()
        topics = tuple({topic for topic, _ in self._needs})
        applied = encode_vector(VersionVector(self._needs))
        needs = tuple((*partition, floor) for partition, floor in self._needs.items())
        self._pager.link.send(Report(self._name, topics, (), applied, 0, needs))

    def _manifest(self, topic: str, partition: PartitionId, skip: int, other: int) -> tuple[Manifest, str]:
        data = self._whole(FetchFile(0, *partition, "", -1, 0, PIECE_BYTES, skip, other), MAX_MANIFEST_BYTES)
        return decode_manifest(data, f"the manifest of the keeper's snapshot of {topic!r}")

    def _entries(
        self, partition: PartitionId, digest: str, state: StateRecord, other: int
    ) -> Iterator[tuple[bytes, Entry]]:
        for index, file in enumerate(state.files):
            yield from decode_page(self._proved(partition, digest, index, file, other), _place(file))

    def _rows(
        self, partition: PartitionId, digest: str, state: StateRecord, other: int
    ) -> Iterator[tuple[str, RowBatch]]:
        files = ((table.definition, file) for table in state.tables for file in table.files)
        for index, (definition, file) in enumerate(files, len(state.files)):
            data = self._proved(partition, digest, index, file, other)
            yield definition.table, decode_rows(data, definition, _place(file))

    def _proved(self, partition: PartitionId, digest: str, index: int, file: FileRecord, other: int) -> memoryview:
        """All of a file, in memory."""
        ask = FetchFile(0, *partition, digest, index, 0, PIECE_BYTES, 0, other)
        data = self._whole(ask, min(file.nbytes, MAX_FILE_BYTES))
        if len(data) != file.nbytes or digest_of(data) != file.digest:
            problem = f"{_place(file)} is damaged: its digest does not match its bytes"
            raise CorruptLog(problem, partition=partition[1])
        return memoryview(data)

    def _whole(self, ask: FetchFile, most: int) -> bytes:
        """All of a file of at most so many bytes."""
        data, total = bytearray(), 1
        while len(data) < total:
            if time.monotonic() > self._deadline:
                raise ParamstreamTimeout("the keeper's snapshot did not come in time", partition=ask.partition)
            piece, total = self._pager.piece(msgspec.structs.replace(ask, offset=len(data)))
            if total > most or not piece:
                raise CorruptLog(f"a file of the keeper's snapshot says {total} bytes", partition=ask.partition)
            data += piece
            if self._needs and time.monotonic() - self._held_at > HOLD_S:
                self._hold()
        return bytes(data)


def _place(file: FileRecord) -> str:
    return f"{file.name} of the keeper's snapshot"
