"""Reading many places of a file, compiled by numba: the system call without a way through the interpreter for each.

Importing this imports numba. For systems whose C library has `preadv2`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.core import types
from numpy.typing import NDArray

from .index import Ints, Marks
from .intrinsics import GIVEN_INTS, MARKS, kernel

_RWF_NOWAIT: Final = 8
_preadv2: Any = types.ExternalFunction(
    "preadv2", types.int64(types.int32, types.uint64, types.int32, types.int64, types.int32)
)


def _read_now(
    handle: int, buffer: NDArray[np.uint8], begins: Ints, nbytes: Ints, offsets: Ints, is_read: Marks
) -> None:
    """As `reads.read_places` asks for it: fills what is in memory, and marks these pieces."""
    address = np.uint64(buffer.ctypes.data)
    vector = np.empty(2, np.uint64)
    vectors = np.uint64(vector.ctypes.data)
    for place in range(len(begins)):
        vector[0] = address + np.uint64(begins[place])
        vector[1] = np.uint64(nbytes[place])
        is_read[place] = _preadv2(np.int32(handle), vectors, 1, offsets[place], _RWF_NOWAIT) == nbytes[place]


read_now = kernel(
    _read_now,
    types.void,
    types.int64,
    types.Array(types.uint8, 1, "C"),
    GIVEN_INTS,
    GIVEN_INTS,
    GIVEN_INTS,
    MARKS,
)
