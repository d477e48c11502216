"""The loops of `policy_steps.py`, compiled by numba. Importing this imports numba."""

from __future__ import annotations

from typing import Final

from numba.core import types

from . import policy_steps as plain
from .intrinsics import GIVEN_INTS, INTS, PLACES, kernel

_BYTES: Final = types.Array(types.uint8, 1, "C")
_QUEUES: Final = (PLACES, PLACES, _BYTES, INTS)

STEPS: Final = plain.Steps(
    kernel(plain.link, types.void, *_QUEUES, GIVEN_INTS, types.int64),
    kernel(plain.unlink, types.void, *_QUEUES, GIVEN_INTS),
    kernel(plain.choose, types.void, *_QUEUES, _BYTES, PLACES, types.int64, INTS),
)
