"""Calls that a broker's death may interrupt, made again while the library itself says that this may help."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import paramstream as ps

_T = TypeVar("_T")


def patiently(call: Callable[[], _T], timeout: float = 60.0) -> _T:
    """What `call` returns; a retriable error is answered by calling again, until `timeout` s have passed."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return call()
        except ps.ParamstreamError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
