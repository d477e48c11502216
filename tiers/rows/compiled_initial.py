"""First values of rows, to be compiled: the arithmetic of `initial.py`, operation by operation, in float64."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.core import types

from .initial import FAR, GOLDEN, LN2, LOG_TERMS, MIDDLE, MIDDLE_REACH, TAIL, TAIL_REACH
from .intrinsics import GIVEN_INTS, inlined, kernel

_EXACT: Final = types.Array(types.float64, 2, "C")


@inlined
def mix(number: Any) -> Any:
    """Spreads a number over all 64 bits."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


@inlined
def ratio(above: Any, below: Any, at: Any) -> Any:
    """Two polynomials, one by the other."""
    over, under = above[0], below[0]
    for power in range(1, 8):
        over = over * at + above[power]
        under = under * at + below[power]
    return over / under


@inlined
def log(number: Any, room: Any) -> Any:
    """The natural logarithm. `room` has place for one number."""
    room[0] = number
    bits = room.view(np.int64)
    exponent = np.float64((bits[0] >> 52) - 1023)
    bits[0] = (bits[0] & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000
    mantissa = room[0]
    if mantissa > 1.4142135623730951:
        mantissa = mantissa * 0.5
        exponent = exponent + 1.0
    part = (mantissa - 1.0) / (mantissa + 1.0)
    square = part * part
    series = 0.0
    for term in range(LOG_TERMS - 1, -1, -1):
        series = series * square + 1.0 / (2 * term + 1)
    return exponent * LN2 + 2.0 * part * series


def normal(keys: Any, seed: Any, std: Any, rows: Any) -> None:
    """Fills in the first values of rows. `seed` is mixed already."""
    dim = rows.shape[1]
    shares = np.empty(dim, np.float64)
    room = np.empty(1, np.float64)
    for i in range(len(keys)):
        start = mix(np.uint64(keys[i]) ^ seed)
        row = rows[i]
        # All as if they were near the middle, which goes by vectors; then the others, one in seven, once more.
        for j in range(dim):
            number = mix(start + np.uint64(j + 1) * GOLDEN)
            shares[j] = (np.float64(number >> np.uint64(12)) + 0.5) * 2.0**-52
        for j in range(dim):
            off = shares[j] - 0.5
            row[j] = std * (off * ratio(MIDDLE[0], MIDDLE[1], MIDDLE_REACH * MIDDLE_REACH - off * off))
        for j in range(dim):
            off = shares[j] - 0.5
            if abs(off) > MIDDLE_REACH:
                depth = np.sqrt(-log(shares[j] if off < 0 else 1.0 - shares[j], room))
                if depth <= TAIL_REACH:
                    size = ratio(TAIL[0], TAIL[1], depth - 1.6)
                else:
                    size = ratio(FAR[0], FAR[1], depth - 5.0)
                row[j] = std * (-size if off < 0 else size)


normal = kernel(normal, types.void, GIVEN_INTS, types.uint64, types.float64, _EXACT)
