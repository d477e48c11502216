"""Whether one dtype holds every value of another. Knows dtypes by their names, and no torch."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

from ..events.arrays import DTYPES

Cast = Literal["none", "exact", "lossy"]
"""What may become of values on their way into a module: nothing; a dtype that holds all of them; any rounding too."""

_COMPONENTS = {"complex64": "float32", "complex128": "float64"}

_FLOATS = {
    "float8_e4m3fn": (3, 8, -9),
    "float8_e4m3fnuz": (3, 7, -10),
    "float8_e5m2": (2, 15, -16),
    "float8_e5m2fnuz": (2, 15, -17),
    "float16": (10, 15, -24),
    "bfloat16": (7, 127, -133),
    "float32": (23, 127, -149),
    "float64": (52, 1023, -1074),
}
"""Bits of the mantissa as they are stored, exponent of the greatest value, exponent of the least one above 0."""


def may_cast(source: str, target: str, cast: Cast) -> bool:
    """Whether values of dtype `source` may be written into a tensor of dtype `target`."""
    return source == target or cast == "lossy" or (cast == "exact" and keeps_values(source, target))


@cache
def keeps_values(source: str, target: str) -> bool:
    """Every value of `source` has an equal one in `target`. False where one of them is no dtype that travels."""
    if source == target:
        return True
    if source not in DTYPES or target not in DTYPES or target == "bool":
        return False
    if target in _COMPONENTS:
        return keeps_values(_COMPONENTS.get(source, source), _COMPONENTS[target])
    if source in _COMPONENTS:
        return False
    if source == "bool":
        return True
    if _is_integer(source):
        if _is_integer(target):
            return np.can_cast(DTYPES[source], DTYPES[target], "safe")
        return _bits_of(source) <= _FLOATS[target][0] + 1
    return not _is_integer(target) and _float_fits(source, target)


def _is_integer(dtype: str) -> bool:
    return DTYPES[dtype].kind in "iu"


def _bits_of(dtype: str) -> int:
    """Of the greatest magnitude, which for signed ones is a power of two."""
    return int(np.iinfo(DTYPES[dtype]).max).bit_length()


def _float_fits(source: str, target: str) -> bool:
    (bits, most, least), (target_bits, target_most, target_least) = _FLOATS[source], _FLOATS[target]
    # Variants of float8 differ in what they have of infinities: none holds another.
    is_wider = DTYPES[target].itemsize > DTYPES[source].itemsize
    return is_wider and bits <= target_bits and most <= target_most and least >= target_least
