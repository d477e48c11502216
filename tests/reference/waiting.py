"""Waits on a condition of another thread or process, bounded by a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar

_T = TypeVar("_T")

LOOK_S = 0.005


def eventually(look: Callable[[], _T | Literal[False, ""] | None], timeout: float = 10.0) -> _T:
    """What `look` gives as soon as it is true; fails with its last value where that is not so within `timeout` s."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, f"still {found!r} after {timeout:g} s"
        time.sleep(LOOK_S)
    return found
