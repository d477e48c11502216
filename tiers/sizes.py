"""Sizes as people write them: `4GiB`, `512MiB`, `100MB`, or a plain number of bytes."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import cast

from ..errors import InvalidEvent

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}

_SIZE = re.compile(r"([0-9]{1,100}(?:\.[0-9]{1,100})?)[ ]?([A-Za-z]*)")


def parse_size(size: int | str) -> int:
    """Bytes meant by `size`: an int is bytes already, a text is a number and a unit.

    Units with an `i` are powers of 1,024 (`GiB`), those without are powers of 1,000 (`GB`); case does not matter. A fraction
    such as `1.5GiB` is exact, and must come out as whole bytes. Raises `InvalidEvent`, a `ValueError`, naming the text for anything
    else, and for a negative number.
    """
    if isinstance(size, int):
        if size < 0:
            raise InvalidEvent(f"a size cannot be negative: {size}")
        return size
    match = _SIZE.fullmatch(size.strip()) if isinstance(cast(object, size), str) else None
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidEvent(
            f"not a size: {size!r}. Write bytes, or a number and one of KiB, MiB, GiB, TiB, KB, MB, GB, TB"
        )
    exact = Fraction(match[1]) * unit
    if exact.denominator != 1:
        raise InvalidEvent(f"not a whole number of bytes: {size!r}")
    return exact.numerator


def size_text(nbytes: int) -> str:
    """`nbytes` for a person to read, in the largest binary unit that it fills: `3.5 GiB`, `17 bytes`."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} bytes"
