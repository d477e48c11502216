"""Reads a snapshot: everything is proved by its digest before anybody sees it, and a damaged one is named and passed over.

snapshot = open_snapshot(Path("/var/lib/snapshots"), "model")
for key, entry in snapshot.entries(0): ...
for table, batch in snapshot.rows(0): ...
sealed = snapshot.sealed(store)
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from pathlib import Path

import xxhash

from ...consistency.vector import PartitionId, VersionVector
from ...errors import CorruptLog, UnknownTopic
from ...events.manifest import FileRecord, Manifest, digest_of, vector_of
from ...tiers.entries import Entry
from ...tiers.rows.batch import RowBatch
from ...tiers.store import TieredStore
from ...transport.calls import TopicRecord
from ..versions import Sealed
from . import weights_file
from .entry_pages import decode_page
from .folder import find_topic, in_order, read_manifest, topic_folder
from .row_pages import decode_rows

_log = logging.getLogger(__name__)

READ_BYTES = 8 * 1024 * 1024


class Snapshot:
    """A snapshot of one topic on this machine, whose manifest holds together. Files are opened as they are asked for."""

    def __init__(self, path: Path) -> None:
        """Raises `CorruptLog` that names the manifest."""
        self.path = path
        self.manifest: Manifest
        self.manifest, self.digest = read_manifest(path)
        self.damaged: tuple[CorruptLog, ...] = ()
        """Of newer snapshots of the topic, which were passed over."""

    @property
    def record(self) -> TopicRecord:
        """The topic as it was."""
        held = self.manifest
        return TopicRecord(held.topic, held.topic_id, held.partitions, held.persistence, held.retain_versions)

    @property
    def floor(self) -> VersionVector[int]:
        """What lies above it is to be read from the log again, up to the ceiling at least."""
        return VersionVector({p: floor for p, (floor, _) in self._spans().items()})

    @property
    def ceiling(self) -> VersionVector[int]:
        """Nothing may be shown before all of it is applied."""
        return VersionVector({p: ceiling for p, (_, ceiling) in self._spans().items()})

    @property
    def context(self) -> VersionVector[int]:
        """The closed vector of all that the state rests on."""
        return vector_of(self.manifest.context)

    @property
    def version(self) -> int | None:
        """Of the weights; None where nothing was sealed yet."""
        sealed = self.manifest.weights.sealed
        return None if sealed is None else sealed.version

    def entries(self, number: int) -> Iterator[tuple[bytes, Entry]]:
        """The entries of a state partition, page by page. Raises `CorruptLog` before anything of a damaged page is given."""
        state = self.manifest.state_of(number)
        for file in state.files if state is not None else ():
            yield from decode_page(self._proved(file), str(self.path / file.name))

    def rows(self, number: int) -> Iterator[tuple[str, RowBatch]]:
        """The rows of a state partition, page by page, each with the name of its table. Raises `CorruptLog` as `entries` does."""
        state = self.manifest.state_of(number)
        for table in state.tables if state is not None else ():
            for file in table.files:
                yield (
                    table.definition.table,
                    decode_rows(self._proved(file), table.definition, str(self.path / file.name)),
                )

    def sealed(self, store: TieredStore) -> Sealed | None:
        """The version of the weights in a slot of `store`, or None. The caller has the one reference to it.

        Raises `CorruptLog` that names file and tensor, `StorageFull`.
        """
        record = self.manifest.weights.sealed
        if record is None:
            return None
        return weights_file.load(record, self._mapped(record.file), str(self.path / record.file.name), store)

    def check(self) -> None:
        """Read every file. Raises `CorruptLog` that names the first one that is not what the manifest says."""
        for file in self.manifest.files():
            self.check_file(file)

    def check_file(self, file: FileRecord) -> None:
        path = self.path / file.name
        hashed, nbytes = xxhash.xxh3_128(), 0
        try:
            with path.open("rb") as opened:
                while piece := opened.read(READ_BYTES):
                    hashed.update(piece)
                    nbytes += len(piece)
        except OSError as error:
            raise CorruptLog(f"cannot read {path}: {error.strerror}", item=str(path)) from error
        if nbytes != file.nbytes:
            raise _damaged(path, f"it has {nbytes} bytes and not {file.nbytes}")
        if hashed.hexdigest() != file.digest:
            raise _damaged(path, "its digest does not match its bytes")

    def _spans(self) -> dict[PartitionId, tuple[int, int]]:
        return {(self.manifest.topic_id, number): span for number, span in self.manifest.spans().items()}

    def _proved(self, file: FileRecord) -> memoryview:
        data = self._mapped(file)
        if digest_of(data) != file.digest:
            raise _damaged(self.path / file.name, "its digest does not match its bytes")
        return data

    def _mapped(self, file: FileRecord) -> memoryview:
        path = self.path / file.name
        try:
            with path.open("rb") as opened:
                data = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise CorruptLog(f"cannot read {path}: {error}", item=str(path)) from error
        if len(data) != file.nbytes:
            raise _damaged(path, f"it has {len(data)} bytes and not {file.nbytes}")
        return data


def open_snapshot(root: Path, topic: str, topic_id: int | None = None) -> Snapshot:
    """The snapshot of `topic` to use in a folder: the latest that is whole, every file read and proved.

    With `topic_id`, of that very topic, whatever had the name before. Damaged ones are named in `damaged` and in the log.
    Raises `UnknownTopic` where the folder holds none of the topic; `CorruptLog` where it holds no whole one.
    """
    folder = find_topic(root, topic) if topic_id is None else topic_folder(root, topic, topic_id)
    return newest_whole(folder, topic)


def newest_whole(folder: Path, topic: str) -> Snapshot:
    """As `open_snapshot`, in the topic's own folder."""
    damaged: list[CorruptLog] = []
    for path in in_order(folder):
        try:
            snapshot = Snapshot(path)
            snapshot.check()
        except CorruptLog as error:
            error.topic = topic
            _log.warning("a snapshot is passed over: %s", error)
            damaged.append(error)
            continue
        snapshot.damaged = tuple(damaged)
        return snapshot
    if damaged:
        raise damaged[0]
    raise UnknownTopic(f"{folder} holds no snapshot", topic=topic, item=str(folder))


def _damaged(path: Path, problem: str) -> CorruptLog:
    return CorruptLog(f"{path} is damaged: {problem}", item=str(path), remedy="Use another snapshot, or the log")
