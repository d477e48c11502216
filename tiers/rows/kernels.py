"""Which loops a process uses for its row tables.

The first call of `kernels` imports numba, and compiles what all tables need; the first table of a kind of optimizer, or of `Normal`
rows, compiles what that one needs: 5 s of one core for all there is. What is compiled is kept in `__pycache__`, in `NUMBA_CACHE_DIR`,
or in the user's cache, and taken from there in half a second by the next process.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache

from .kernels_numpy import NumpyKernels

__all__ = ["NumpyKernels", "kernels", "uses_numba"]


def uses_numba() -> bool:
    """Whether this process compiles its loops."""
    return os.environ.get("PARAMSTREAM_NUMBA") != "0" and importlib.util.find_spec("numba") is not None


@cache
def kernels() -> NumpyKernels:
    """The compiled loops where numba is installed; those of numpy where it is not, or where `PARAMSTREAM_NUMBA=0` is set."""
    if not uses_numba():
        return NumpyKernels()
    from .kernels_numba import NumbaKernels  # numba is optional, and slow to import.

    return NumbaKernels()
