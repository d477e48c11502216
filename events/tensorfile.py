"""The beginning of a safetensors file: which tensors it holds, and where.

A file is 8 bytes of length, a JSON header of that length, and the tensors' row-major bytes, widest dtype first, so that each
lies at a multiple of its own width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict, cast

from ..errors import CorruptLog, InvalidEvent
from .arrays import DTYPES, nbytes_of

DTYPE_OF_TAG = {
    "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
"""safetensors' name of a dtype → ours."""

TAG_OF_DTYPE = {dtype: tag for tag, dtype in DTYPE_OF_TAG.items()}

METADATA = "__metadata__"
"""The one name that safetensors has for itself."""

_LENGTH_BYTES = 8


class Entry(TypedDict):
    """A tensor in a file's header. Offsets count from the end of the header."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]


class Place(NamedTuple):
    """Where a tensor lies in its file, and as what."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """In bytes, from the beginning of the file."""
    end: int


def in_file_order(described: Mapping[str, tuple[str, tuple[int, ...]]]) -> list[str]:
    """Names of tensors (name → (dtype, shape)) in the order in which a file holds them."""
    return sorted(described, key=lambda name: (-DTYPES[described[name][0]].itemsize, name))


def encode_header(
    described: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, int]:
    """A file's beginning up to the first tensor, and the bytes of all tensors, which follow in the order of `described`.

    Raises `InvalidEvent` for a name or a dtype that the format cannot hold.
    """
    entries: dict[str, object] = {METADATA: dict(metadata)}
    end = 0
    for name, (dtype, shape) in described.items():
        if name in entries:
            # A topic takes the name like any other; in a file it would take the place of what readers look for there.
            raise InvalidEvent(f"safetensors has the name {name!r} for itself", item=name)
        if dtype not in TAG_OF_DTYPE:
            raise InvalidEvent(f"safetensors has no dtype for {dtype}", item=name)
        start, end = end, end + nbytes_of(dtype, shape)
        entries[name] = Entry(dtype=TAG_OF_DTYPE[dtype], shape=list(shape), data_offsets=[start, end])
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, end


def decode_header(data: memoryview, place: str) -> dict[str, Place]:
    """The tensors of the file whose bytes are `data`. Raises `CorruptLog` naming `place` where its header cannot be believed."""
    begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    try:
        if begin > len(data):
            raise ValueError(f"a header of {begin - _LENGTH_BYTES} bytes in a file of {len(data)}")
        header = cast("dict[str, Any]", json.loads(bytes(data[_LENGTH_BYTES:begin])))
        header.pop(METADATA, None)
        places = {name: _place(entry, begin, len(data)) for name, entry in header.items()}
        _check_apart(places)
        return places
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptLog(f"{place} is no safetensors file: {error}", item=place) from error


def _check_apart(places: Mapping[str, Place]) -> None:
    """No bytes are those of two tensors: all of them together are no more than the file."""
    spans = sorted((place.start, place.end) for place in places.values() if place.end > place.start)
    if any(start < end for (_, end), (start, _) in pairwise(spans)):
        raise ValueError("two tensors lie in the same bytes")


def _place(entry: Entry, begin: int, nbytes: int) -> Place:
    dtype, shape = DTYPE_OF_TAG[entry["dtype"]], tuple(entry["shape"])
    start, end = entry["data_offsets"]
    if any(type(number) is not int for number in (*shape, start, end)):
        raise TypeError("shapes and offsets are whole numbers")
    if not 0 <= start <= end <= nbytes - begin or end - start != nbytes_of(dtype, shape):
        raise ValueError(f"a {dtype} of shape {shape} cannot lie at {start} to {end}")
    return Place(dtype, shape, begin + start, begin + end)
