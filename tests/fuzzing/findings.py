"""What was found: made small, and kept in the corpus, where every test run meets it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from fuzzing.target import CORPUS, Target

MAX_ATTEMPTS = 3000


def keep(target: Target, data: bytes) -> Path:
    """The file of the corpus that holds the input."""
    folder = CORPUS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:12]
    path.write_bytes(data)
    return path


def failure(target: Target, data: bytes) -> Exception | None:
    """What the input does; None where it is as it should be."""
    try:
        target.check(data)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
        return error
    return None


def smaller(data: bytes, still_fails: Callable[[bytes], bool]) -> bytes:
    """A part of the input, some of it zeroed, that fails just so. Nothing shorter was found by leaving out one piece more."""
    attempts, size = 0, max(1, len(data) // 2)
    while size and attempts < MAX_ATTEMPTS:
        at, changed = 0, False
        while at < len(data) and attempts < MAX_ATTEMPTS:
            attempts += 1
            shorter = data[:at] + data[at + size :]
            if still_fails(shorter):
                data, changed = shorter, True
            else:
                at += size
        size = size if changed and size > 1 else size // 2
    for at in range(len(data)):
        zeroed = data[:at] + b"\0" + data[at + 1 :]
        if data[at] and attempts < MAX_ATTEMPTS and still_fails(zeroed):
            data = zeroed
        attempts += 1
    return data
