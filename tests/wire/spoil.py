"""Records that a log holds otherwise than they were sent, with checksums that are right: what a bug of a writer would leave.

Frames are changed in place while they are appended, so that log, fan-out and fetches all carry the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from paramstream.eventlog.memory import MemoryPartition
from paramstream.eventlog.partition import LocalPartition
from paramstream.events.codec import PREFIX_BYTES
from paramstream.events.digest import checksum

FORMAT_AT = 2
HEAD_NBYTES_AT = 16
META_NBYTES_AT = 20
BODY_CHECKSUM_AT = 48
PREFIX_CHECKSUM_AT = 56

NO_MESSAGE_PACK = b"\xc1"
"""The one byte that no MessagePack value begins with."""

Spoil = Callable[[memoryview], None]


def spoil_appended(monkeypatch: pytest.MonkeyPatch, marker: bytes, spoil: Spoil) -> None:
    """From now on every record with `marker` in it is spoilt on its way into any log."""
    for log in (MemoryPartition, LocalPartition):
        append: Callable[[Any, Any], None] = log.append

        def spoilt(self: Any, frame: Any, append: Callable[[Any, Any], None] = append) -> None:
            view = memoryview(frame)
            if marker in bytes(view):
                spoil(view)
            append(self, frame)

        monkeypatch.setattr(log, "append", spoilt)


def undecodable(frame: memoryview) -> None:
    """Its payload is no MessagePack."""
    (head_nbytes,) = struct.unpack_from("<I", frame, HEAD_NBYTES_AT)
    frame[PREFIX_BYTES + head_nbytes : PREFIX_BYTES + head_nbytes + 1] = NO_MESSAGE_PACK
    seal(frame)


def of_format(number: int) -> Spoil:
    def spoil(frame: memoryview) -> None:
        frame[FORMAT_AT] = number
        seal(frame)

    return spoil


def seal(frame: memoryview | bytearray) -> None:
    """Make both checksums right."""
    view = memoryview(frame)
    struct.pack_into("<Q", view, BODY_CHECKSUM_AT, checksum(view[PREFIX_BYTES:]))
    struct.pack_into("<Q", view, PREFIX_CHECKSUM_AT, checksum(view[:PREFIX_CHECKSUM_AT]))
