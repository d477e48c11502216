"""A task's snapshots in a folder: one file each, whole or not there.

    FOLDER/PARTITION/POSITION.snapshot      16 hexadecimal digits: the newest one has the greatest position

A file is written aside, synced, renamed, and its folder synced. The newest two are kept, so that a damaged one can be named
and the one before it used. Any whole snapshot of a name is right, whoever wrote it: what a processor does is determined.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from ...errors import CorruptLog, InvalidEvent
from .state import EncodedState, decode_state

_log = logging.getLogger(__name__)

KEPT = 2
_SUFFIX, _ASIDE = ".snapshot", ".aside"
_SNAPSHOT = re.compile(r"([0-9a-f]{16})\.snapshot")
_HEADER = struct.Struct(
    "<8sQQQ"
)  # magic with the format, checksum of all that follows it, bytes of the record, bytes of bulk
_MAGIC = b"PSTASK\x00\x01"
_CHECKED_FROM = 16


class Origin(msgspec.Struct, array_like=True, frozen=True):
    """Whose state it is."""

    name: str
    """Of the task."""
    topic_id: int
    """Of the source: a topic that was made again under its name is another one."""
    topic: str
    partition: int


class _Record(msgspec.Struct, array_like=True, frozen=True):
    origin: Origin
    position: int
    tree: bytes


@dataclass(frozen=True, slots=True)
class Loaded:
    position: int
    state: dict[Any, Any]


class SnapshotFolder:
    """The snapshots of one task. One thread uses it; a task that was fenced and does not know it yet may write here too."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        """Makes the folder. Raises `OSError`."""
        self._folder = folder / str(origin.partition)
        self._origin = origin
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in os.listdir(self._folder):
            if name.endswith(_ASIDE):
                (self._folder / name).unlink(missing_ok=True)

    @property
    def oldest(self) -> int | None:
        """The position of the oldest snapshot that is kept, which the task may have to go back to."""
        positions = self._positions()
        return positions[0] if positions else None

    def load(self) -> Loaded | None:
        """The newest whole snapshot, None where there is none. Damaged ones are named in the log, and passed over.

        Raises `CorruptLog` where all are damaged, `InvalidEvent` where they are another task's.
        """
        damaged: CorruptLog | None = None
        for position in reversed(self._positions()):
            path = self._path(position)
            try:
                return self._read(path)
            except FileNotFoundError:
                continue
            except CorruptLog as error:
                _log.warning("the snapshot %s is damaged, the one before it is used: %s", path, error.problem)
                damaged = damaged or error
        if damaged is not None:
            raise damaged
        return None

    def save(self, position: int, state: EncodedState, writer: str) -> None:
        """Write a snapshot, safe when this returns; then let go of those that are too old. `writer` names no other one.

        Raises `OSError`; what was there before is there still.
        """
        record = msgspec.msgpack.encode(_Record(self._origin, position, state.tree))
        bulk_nbytes = sum(len(piece) for piece in state.bulk)
        pieces = (struct.pack("<QQ", len(record), bulk_nbytes), record, *state.bulk)
        aside = self._folder / f"{position:016x}.{writer}{_ASIDE}"
        try:
            with aside.open("wb", buffering=0) as file:
                _write(file.fileno(), (_MAGIC, struct.pack("<Q", _checksum(pieces)), *pieces))
                os.fsync(file.fileno())
            aside.rename(self._path(position))
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
        handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        for old in self._positions()[:-KEPT]:
            self._path(old).unlink(missing_ok=True)

    def _read(self, path: Path) -> Loaded:
        data = memoryview(path.read_bytes())
        if len(data) < _HEADER.size:
            raise CorruptLog(f"{path} has {len(data)} bytes, fewer than its header")
        magic, found, record_nbytes, bulk_nbytes = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise CorruptLog(f"{path} begins with {magic!r}, which is no snapshot of a task that this reader knows")
        end = _HEADER.size + record_nbytes
        if len(data) != end + bulk_nbytes or xxhash.xxh3_64_intdigest(data[_CHECKED_FROM:]) != found:
            raise CorruptLog(f"{path} is damaged: its bytes are not those that were written")
        try:
            record = msgspec.msgpack.decode(data[_HEADER.size : end], type=_Record)
        except (msgspec.DecodeError, RecursionError) as error:
            raise CorruptLog(f"{path} cannot be decoded: {error}") from error
        if record.origin != self._origin:
            raise InvalidEvent(
                f"{path} is of {_show(record.origin)}, this is {_show(self._origin)}",
                topic=self._origin.topic,
                partition=self._origin.partition,
                remedy="Give each processor a folder and a name of its own, new ones where its source was made anew",
            )
        return Loaded(record.position, decode_state(record.tree, data[end:]))

    def _positions(self) -> list[int]:
        """Of the snapshots, oldest first."""
        matches = (_SNAPSHOT.fullmatch(name) for name in os.listdir(self._folder))
        return sorted(int(match[1], 16) for match in matches if match is not None)

    def _path(self, position: int) -> Path:
        return self._folder / f"{position:016x}{_SUFFIX}"


def _write(handle: int, pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        left = memoryview(piece)
        while left:
            left = left[os.write(handle, left) :]


def _checksum(pieces: Sequence[bytes]) -> int:
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(piece)
    return digest.intdigest()


def _show(origin: Origin) -> str:
    return f"task {origin.name!r} over topic {origin.topic!r} ({origin.topic_id:016x})"
