"""One JSON object a line, over a pipe: how a test and its children talk."""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

Line = dict[str, Any]

_READ_BYTES = 65536


class Lines:
    """Reads objects from a file descriptor, each within a time. Not thread-safe."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._pending = bytearray()

    def next(self, timeout: float) -> Line | None:
        """The next object, or None where none came within `timeout` s. Raises `EOFError` where the other end is gone."""
        deadline = time.monotonic() + timeout
        while (end := self._pending.find(b"\n")) < 0:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._handle], [], [], left)[0]:
                return None
            data = os.read(self._handle, _READ_BYTES)
            if not data:
                raise EOFError("the other process has closed its end")
            self._pending += data
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return decode(line)


def say(**fields: Any) -> None:
    """One object to standard output, at once."""
    os.write(1, encode(fields))


def encode(fields: Line) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def decode(line: bytes) -> Line:
    found: Line = json.loads(line)
    return found
