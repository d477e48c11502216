"""Entries of a state partition in a safetensors file: columns, so that any reader of the format can look at them.

keys, values            uint8: all keys, and all values, one behind another
key_ends, value_ends    uint64: where each one ends
positions               uint64: of the event that wrote it
deadlines               int64: ns of sequencing time, or -1
valid_versions          int64: the version that it is valid for, or -1; valid_commits, uint64: of its commit, 0 if not sealed
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import CorruptLog
from ...events.tensorfile import decode_header, encode_header, in_file_order
from ...tiers.entries import Entry

PAGE_BYTES = 8 * 1024 * 1024
"""About how much one file holds: what is read, proved and put in place at once."""

_COLUMNS = {
    "key_ends": "uint64",
    "value_ends": "uint64",
    "positions": "uint64",
    "deadlines": "int64",
    "valid_versions": "int64",
    "valid_commits": "uint64",
    "keys": "uint8",
    "values": "uint8",
}
_NONE = -1


def encode_page(items: Sequence[tuple[bytes, Entry]]) -> list[bytes | memoryview]:
    """A whole file, as pieces to write one after another."""
    entries = [entry for _, entry in items]
    valid = [entry.valid_for or (_NONE, 0) for entry in entries]
    columns: dict[str, npt.NDArray[Any]] = {
        "key_ends": np.fromiter(accumulate(len(key) for key, _ in items), np.uint64),
        "value_ends": np.fromiter(accumulate(len(entry.value) for entry in entries), np.uint64),
        "positions": np.array([entry.position for entry in entries], np.uint64),
        "deadlines": np.array([_NONE if e.deadline is None else e.deadline for e in entries], np.int64),
        "valid_versions": np.array([version for version, _ in valid], np.int64),
        "valid_commits": np.array([commit for _, commit in valid], np.uint64),
        "keys": np.frombuffer(b"".join(key for key, _ in items), np.uint8),
        "values": np.frombuffer(b"".join(entry.value for entry in entries), np.uint8),
    }
    described = {name: (dtype, columns[name].shape) for name, dtype in _COLUMNS.items()}
    order = in_file_order(described)
    header, _ = encode_header({name: described[name] for name in order}, {"format": "paramstream entries"})
    return [header, *(columns[name].tobytes() for name in order)]


def decode_page(data: memoryview, place: str) -> Iterator[tuple[bytes, Entry]]:
    """The entries of a file. Raises `CorruptLog` that names `place` where the columns do not fit together."""
    columns = _columns(data, place)
    keys, values = bytes(columns["keys"]), bytes(columns["values"])
    at_key = at_value = 0
    numbers = [columns[name].tolist() for name in _COLUMNS if name not in ("keys", "values")]
    for key_end, value_end, position, deadline, version, commit in zip(*numbers, strict=True):
        yield (
            keys[at_key:key_end],
            Entry(
                values[at_value:value_end],
                position,
                None if deadline == _NONE else deadline,
                None if version == _NONE else (version, commit),
            ),
        )
        at_key, at_value = key_end, value_end


def _columns(data: memoryview, place: str) -> dict[str, npt.NDArray[Any]]:
    found = decode_header(data, place)
    if {name: at.dtype for name, at in found.items()} != _COLUMNS or any(len(at.shape) != 1 for at in found.values()):
        raise CorruptLog(f"{place} is no page of entries", item=place)
    columns = {name: np.frombuffer(data[at.start : at.end], np.dtype(at.dtype)) for name, at in found.items()}
    counts = {len(column) for name, column in columns.items() if name not in ("keys", "values")}
    whole = len(counts) == 1 and all(
        _ascend(columns[f"{what}_ends"], len(columns[f"{what}s"])) for what in ("key", "value")
    )
    if not whole:
        raise CorruptLog(f"the columns of {place} do not fit together", item=place)
    return columns


def _ascend(ends: npt.NDArray[Any], total: int) -> bool:
    return (int(ends[-1]) if len(ends) else 0) == total and bool((ends[1:] >= ends[:-1]).all())
