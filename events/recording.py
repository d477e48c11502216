"""What recorders of histories share: the file that they write to, and how events, items and partitions are named in it.

A value is the identity of the event that wrote it, `PRODUCER/INCARNATION/SEQUENCE`. A key is `TOPIC#ID/kv/KEY`, `TOPIC#ID/rows/TABLE/KEY` or
`TOPIC#ID/weights`, where ID tells a topic from one that had its name before. The lines themselves are those of `consistency.history`.
Of rows only those are recorded whose keys `recorded_rows` chooses: a batch of thousands costs some dozen lines.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..consistency.history import MAX_LINE_NBYTES, Line, encode_line
from ..consistency.vector import PartitionId, VersionVector
from ..errors import InvalidEvent
from .codec import Buffer
from .kinds import Commit, Delete, DeleteRows, Gradients, Payload, Put, Rows
from .row_keys import Keys, hash_keys

Item = bytes | tuple[str, int] | None
"""What is written and read: the key of an entry, table and key of a row, None for the topic's weights."""

RECORDED_ROWS = 256
"""Rows with the keys 0 … 255 are recorded, and of all others one in `SAMPLE`."""
SAMPLE = 64

_BEGINNINGS = (b"{", b"\n", b" ")
_SURROGATES = 0xDC00
"""Where Python puts a byte that is no UTF-8: at this code point and up."""


class HistoryFile:
    """A file that histories are appended to: by any threads of this process, and by other processes that opened it so too.

    Nothing is buffered here: what `append` has written outlives a killed process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the file, or makes it. Half a line at its end, of a process that was killed there, is cut, unless another process
        has the file open. Raises `InvalidEvent` where it cannot be written, or holds something else.
        """
        self._lock = threading.Lock()
        self._waiting = bytearray()
        """What the file has not taken: never split, so that what comes next goes behind it. Sessions send nothing meanwhile; what
        replicas apply is kept here.
        """
        self.error: OSError | None = None
        """Why the file takes nothing at the moment."""
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except (OSError, ValueError, TypeError) as error:
            raise _unusable(path, error) from error
        try:
            self._cut_half_line()
        except (OSError, ValueError) as error:
            os.close(self._fd)
            raise _unusable(path, error) from error

    def append(self, lines: Iterable[Line]) -> bool:
        """Write the lines, behind each other. True if they are in the file, with all before them; False where the file takes nothing:
        they are written once it does (`flush`). After `close` nothing is written.
        """
        return self._append(b"".join(map(encode_line, lines)))

    def join(self, path: str | os.PathLike[str]) -> bool:
        """Append the whole lines of another history, as `append` does: half a line at its end was never written. Raises `OSError`."""
        data = Path(path).read_bytes()
        return self._append(data[: data.rfind(b"\n") + 1])

    def flush(self) -> bool:
        """Try again to write what the file did not take. True if nothing is left."""
        with self._lock:
            return not self._waiting or self._write()

    def close(self) -> None:
        """A second call changes nothing."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _append(self, data: bytes) -> bool:
        with self._lock:
            self._waiting += data
            return self._write()

    def _write(self) -> bool:
        if self._fd < 0:
            return False
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting)]
        except OSError as error:
            self.error = error
            return False
        self.error = None
        return True

    def _cut_half_line(self) -> None:
        """Whoever has the file open holds a shared lock on it, so that nobody cuts what another one is writing."""
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, 0) not in _BEGINNINGS:
            raise ValueError("it holds something else")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            tail = os.pread(self._fd, MAX_LINE_NBYTES, max(0, size - MAX_LINE_NBYTES))
            half = len(tail) - (tail.rfind(b"\n") + 1)
            if half == MAX_LINE_NBYTES:
                raise ValueError("it holds something else")
            if half:
                os.ftruncate(self._fd, size - half)
        fcntl.flock(self._fd, fcntl.LOCK_SH)


def _unusable(path: object, error: Exception) -> InvalidEvent:
    return InvalidEvent(
        f"no history can be written to {str(path)!r}: {error}", remedy="Give the path of a new file, or of a history"
    )


@dataclass(frozen=True, slots=True)
class Token:
    """What a replica writes into its history when it is observed; who observes it reads that in its own, so that the edge is there."""

    process: str
    """What the replica is recorded as."""
    number: int
    """Grows with what the replica has seen."""
    vector: VersionVector[int]
    """The closed vector of all that the process had read before."""

    @property
    def key(self) -> str:
        return f"seen/{self.process}"


def process_name(name: str, incarnation: int) -> str:
    """What one life of a producer or replica is recorded as. No other life has that name: incarnations are never given twice."""
    return f"{name}/{incarnation}"


def topic_label(name_of: Callable[[int], str | None], topic: int) -> str:
    """A topic's name, and what tells it from another one of that name."""
    return f"{name_of(topic) or ''}#{topic & 0xFFFFFFFF:08x}"


def partition_label(name_of: Callable[[int], str | None], partition: PartitionId) -> str:
    return f"{topic_label(name_of, partition[0])}/{partition[1]}"


def weights_key(topic: str) -> str:
    """`topic`: its label."""
    return f"{topic}/weights"


def entry_key(topic: str, key: bytes) -> str:
    """What is no UTF-8 stands as %XX, and so does "%" itself: no two keys look alike."""
    text = key.replace(b"%", b"%25").decode("utf-8", "surrogateescape")
    if not text.isascii():
        text = "".join(f"%{ord(c) - _SURROGATES:02X}" if "\udc80" <= c <= "\udcff" else c for c in text)
    return f"{topic}/kv/{text}"


def recorded_rows(keys: Keys) -> npt.NDArray[np.bool_]:
    """Which rows histories tell of: the same everywhere and always, so that whoever reads one finds who wrote it. Small keys, as
    people and tests give them by hand, and a sample of all others by their hash.
    """
    sampled: npt.NDArray[np.bool_] = hash_keys(keys) % np.uint64(SAMPLE) == 0
    return sampled | ((keys >= 0) & (keys < RECORDED_ROWS))


def items_written(payload: Payload, bulk: Buffer = b"") -> list[Item]:
    """The items that an event writes, each once. `bulk` begins with the keys of an event of rows. A deletion that spares newer rows
    (`up_to`) is no write: it does not say which are gone.
    """
    match payload:
        case Put():
            return list(dict.fromkeys(item.key for item in payload.items))
        case Delete():
            return list(dict.fromkeys(payload.keys))
        case Commit():
            return [None]
        case Rows() | Gradients():
            return rows_named(payload, bulk)
        case DeleteRows() if payload.up_to is None:
            return rows_named(payload, bulk)
        case _:
            return []


def rows_named(payload: Rows | Gradients | DeleteRows, bulk: Buffer) -> list[Item]:
    """The recorded rows among those that the event names, each once."""
    keys = np.frombuffer(bulk, np.int64, payload.count)
    return [(payload.table, key) for key in dict.fromkeys(keys[recorded_rows(keys)].tolist())]


def item_key(topic: str, item: Item) -> str:
    """The history's key for one of `items_written`."""
    if item is None:
        return weights_key(topic)
    return entry_key(topic, item) if isinstance(item, bytes) else f"{topic}/rows/{item[0]}/{item[1]}"
