"""Records that a log holds otherwise than they were sent, with checksums that are right: what a bug of a writer would leave.

Frames are changed in place before they are fanned out, so that log, fan-out and fetches all carry the same bytes.
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
    """From now on every record with `marker` in it is spoilt in any log: in memory where it lies, else on its way to the disk."""
    in_memory: Callable[[Any, Any], None] = MemoryPartition.append
    on_disk: Callable[[Any, Any], None] = LocalPartition.append

    def append_and_spoil(log: Any, frame: Any) -> None:
        in_memory(log, frame)
        if marker in bytes(frame):
            spoil(memoryview(frame))

    def spoil_and_append(log: Any, frame: Any) -> None:
        if marker in bytes(frame):
            spoil(memoryview(frame))
        on_disk(log, frame)

    monkeypatch.setattr(MemoryPartition, "append", append_and_spoil)
    monkeypatch.setattr(LocalPartition, "append", spoil_and_append)


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
