"""Makes checksums and lengths of damaged bytes right again, so that what stands behind them is reached too.

A disk or a cable is caught by the checksum. A program that is wrong, or hostile, writes right checksums over wrong contents: the
poison event of which fault O04 tells. What is valid already comes back as it was.
"""

from __future__ import annotations

import struct

from paramstream.eventlog.segment import HEADER_NBYTES
from paramstream.events.codec import FORMAT, MAGIC, PREFIX_BYTES
from paramstream.events.digest import checksum
from paramstream.events.manifest import digest_of

_PREFIX = struct.Struct("<2sBBIQIIIIQQQQ")
_U64 = struct.Struct("<Q")


def frame(data: bytes) -> bytes:
    """A frame whose magic, format, lengths and checksums are right; kind, place, head, meta and bulk are the data's."""
    data = data.ljust(PREFIX_BYTES, b"\0")
    _, _, kind, partition, topic, head, meta, _, nonce, position, time, _, _ = _PREFIX.unpack_from(data)
    body = data[PREFIX_BYTES:]
    head = min(head, len(body))
    meta = min(meta, len(body) - head)
    bulk = len(body) - head - meta
    prefix = _PREFIX.pack(
        MAGIC, FORMAT, kind, partition, topic, head, meta, bulk, nonce, position, time, checksum(body), 0
    )[:-8]
    return prefix + _U64.pack(checksum(prefix)) + body


def segment_header(data: bytes) -> bytes:
    """The first 64 bytes with magic, format and checksum right; what follows them stays."""
    body = b"PSEG\x01\x00" + data[6:56].ljust(50, b"\0")
    return body + _U64.pack(checksum(body)) + data[HEADER_NBYTES:]


def slots(data: bytes, numbers: int) -> bytes:
    """A `SlotFile`: two slots of 512 bytes, each with its checksum right for its own number and so many behind it."""
    pieces = (data[at : at + 512].ljust(512, b"\0") for at in (0, 512))
    return b"".join(_U64.pack(checksum(each[8 : 16 + 8 * numbers])) + each[8:] for each in pieces)


def manifest(data: bytes) -> bytes:
    """The manifest of which `data` is the inner object."""
    return b'{"digest":"' + digest_of(data).encode() + b'","manifest":' + data + b"}\n"
