"""Where work on a device is queued, and when it is over.

A *lane* takes work in order. On CUDA it is a stream: the call returns at once, and what the work reads must stay until it is done.
Without CUDA work is done inside the call, by the same callers; a test may hand in a lane that does it later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

import torch


class Done(Protocol):
    """The end of what was queued in a lane."""

    def reached(self) -> bool:
        """Whether all of it is done. Never waits."""
        ...

    def wait(self) -> None:
        """Blocks until all of it is done."""
        ...


class Lane(Protocol):
    """Does work in the order in which it was handed over."""

    @property
    def is_immediate(self) -> bool:
        """Whether work is always done when `run` returns."""
        ...

    def run(self, work: Callable[[], None]) -> Done:
        """Queues `work`, which issues operations on tensors. Whatever it reads and writes is the lane's until `Done`."""
        ...


@final
class _Now:
    """Done before the call that queued it returned."""

    def reached(self) -> bool:
        return True

    def wait(self) -> None:
        return


@final
class InlineLane:
    """Does all work inside the call: for devices that have no streams."""

    is_immediate = True

    def run(self, work: Callable[[], None]) -> Done:
        work()
        return _NOW


@final
class _CudaDone:
    """An event that was recorded behind the work."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def reached(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()


@final
class CudaLane:
    """A stream of a CUDA device: one of its own, or whichever is current where the work is handed over."""

    is_immediate = False

    def __init__(self, device: torch.device, *, own: bool) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if own else None

    def run(self, work: Callable[[], None]) -> Done:
        stream = self._stream or torch.cuda.current_stream(self._device)
        with torch.cuda.stream(stream):
            work()
            event = torch.cuda.Event()
            event.record(stream)
        return _CudaDone(event)


_NOW = _Now()


def side_lane(device: torch.device) -> Lane:
    """A lane of one's own, beside those of everybody else."""
    return CudaLane(device, own=True) if device.type == "cuda" else InlineLane()


def callers_lane(device: torch.device) -> Lane:
    """The lane that the calling thread's own work on the device goes to: what it queues next comes behind."""
    return CudaLane(device, own=False) if device.type == "cuda" else InlineLane()
