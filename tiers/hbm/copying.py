"""Copies of rows from the host into a device, behind the caller's back.

What is to be copied is put into pinned memory of the copier first, so the caller may change its own at once; and a pinned buffer is
used again only when the copy out of it is done (fault N07: memory that a side stream still reads must be nobody else's).
"""

from __future__ import annotations

import threading
from collections import deque
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from .lanes import Done, Lane

BUFFERS = 2
"""One is filled while the other is copied."""
BUFFER_BYTES = 1 << 20
"""More than the longest row."""


@final
class Copier:
    """Scatters rows of the host over rows in a device, through pinned buffers. Thread-safe."""

    def __init__(self, device: torch.device, lane: Lane) -> None:
        self._lane = lane
        self._lock = threading.Lock()
        # Where copies are done inside the call nothing is to be kept for them.
        buffers, pinned = 0 if lane.is_immediate else BUFFERS, device.type == "cuda"
        self._buffers: deque[tuple[torch.Tensor, Done | None]] = deque(
            (torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=pinned), None) for _ in range(buffers)
        )
        self._arrived = torch.empty(BUFFER_BYTES, dtype=torch.uint8, device=device) if pinned else None

    def scatter(self, source: NDArray[np.uint8], into: torch.Tensor, at: NDArray[np.int64]) -> list[Done]:
        """Row i of `source`, (n, row bytes), becomes row `at[i]` of `into`: rows of as many bytes on the device, of any dtype.

        Returns once `source` is the caller's again, with the ends of the copies; blocks while all buffers are on their way.
        """
        if not self._buffers:
            return [self._lane.run(lambda: self._copy(torch.from_numpy(source), into, torch.from_numpy(at)))]
        step = max(1, BUFFER_BYTES // source.shape[1])
        places = torch.from_numpy(at.copy())
        return [
            self._piece(source[low : low + step], into, places[low : low + step]) for low in range(0, len(source), step)
        ]

    def _piece(self, source: NDArray[np.uint8], into: torch.Tensor, at: torch.Tensor) -> Done:
        with self._lock:
            buffer, busy = self._buffers.popleft()
            if busy is not None:
                busy.wait()
            staged = buffer[: source.size].view(source.shape)
            staged.numpy()[:] = source
            done = self._lane.run(lambda: self._copy(staged, into, at))
            self._buffers.append((buffer, done))
            return done

    def _copy(self, staged: torch.Tensor, into: torch.Tensor, at: torch.Tensor) -> None:
        if self._arrived is None:
            into.index_copy_(0, at, staged.view(into.dtype))
            return
        # One buffer on the device is enough: the lane is in order, so the next copy into it comes behind this scatter.
        arrived = self._arrived[: staged.numel()].view(staged.shape)
        arrived.copy_(staged, non_blocking=True)
        into.index_copy_(0, at.to(into.device), arrived.view(into.dtype))


def staging_bytes(device: torch.device) -> tuple[int, int]:
    """Bytes of the device and of the host that a copier into the device keeps."""
    return (BUFFER_BYTES, BUFFERS * BUFFER_BYTES) if device.type == "cuda" else (0, 0)
