"""What becomes of the gradients of rows: collected in backward, summed over a step, published once, and waited for.

Rows that a forward looked up are leaves of its graph. When backward has a leaf's gradient it is kept here; what was kept is published
at the end of that backward, or, once an optimizer is attached, when the optimizer steps.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import EventLost, InvalidEvent
from ..waits import Accepted

Scale = float | Callable[[], float]
"""What gradients are multiplied with before they are published: a number, or what gives it at that moment."""

Nonfinite = Literal["refuse", "skip", "pass"]


class GradientPublisher(Protocol):
    """The part of a publisher that is needed here."""

    @property
    def topic(self) -> str: ...
    def publish_gradients(
        self,
        table: str,
        keys: Any,
        grads: Any,
        nonfinite: Literal["refuse", "pass"] = "refuse",
        *,
        timeout: float = 30.0,
    ) -> Accepted: ...


class Waiting(Protocol):
    """The part of a replica that is needed here."""

    def wait(self, target: Accepted, timeout: float = 30.0) -> None: ...


class GradientHook:
    """Of one module. Thread-safe: where several threads train at once, the first whose backward ends publishes what all have by then."""

    def __init__(
        self, publisher: GradientPublisher, replica: Waiting, table: str, staleness: int | None, scale: Scale,
        nonfinite: Nonfinite, timeout: float,
    ) -> None:  # fmt: skip
        self._publisher = publisher
        self._replica = replica
        self._table = table
        self._staleness = staleness
        self._scale = scale
        self._nonfinite = nonfinite
        self._timeout = timeout
        self._lock = threading.Lock()
        self._kept: list[tuple[NDArray[np.int64], torch.Tensor]] = []
        self._ends_with_backward = True
        self._unseen: deque[Accepted] = deque()
        self.published = 0
        """Calls of `publish_gradients`."""
        self.receipt: Accepted | None = None
        """Of the last of them."""
        self.skipped = 0
        """Steps whose gradients were not finite and were left out, under `nonfinite="skip"`."""

    def watch(self, rows: torch.Tensor, keys: NDArray[np.int64]) -> None:
        """Has the gradients of `rows`, a leaf, kept for `keys` (unique) when backward has them."""

        def keep(leaf: torch.Tensor) -> None:
            grads = leaf.grad
            assert grads is not None
            with self._lock:
                # A backward that can be derived again has gradients with a graph of their own.
                self._kept.append((keys, grads.detach()))
                leaf.grad = None
            if self._ends_with_backward:
                # For each leaf: the first call publishes what all of them have kept by then, and the others find nothing.
                _at_end_of_backward(self.step)

        rows.register_post_accumulate_grad_hook(keep)

    def step_with(self, optimizer: torch.optim.Optimizer) -> None:
        """From here on what backwards keep is published after each `step` of `optimizer`, in one call."""

        def stepped(*_: object) -> None:
            self.step()

        self._ends_with_backward = False
        optimizer.register_step_post_hook(stepped)

    def step(self) -> Accepted | None:
        """Publishes what was kept, in one call; None where that is nothing, or not finite and to be skipped."""
        kept = self._take()
        if not kept:
            return None
        keys = np.concatenate([keys for keys, _ in kept])
        grads = torch.cat([grads for _, grads in kept]) if len(kept) > 1 else kept[0][1]
        scale = self._scale() if callable(self._scale) else self._scale
        if scale != 1.0:
            grads = grads * scale
        if self._nonfinite == "skip" and not bool(torch.isfinite(grads).all()):
            with self._lock:
                self.skipped += 1
            return None
        passes: Literal["refuse", "pass"] = "pass" if self._nonfinite == "pass" else "refuse"
        receipt = self._publisher.publish_gradients(self._table, keys, grads, passes, timeout=self._timeout)
        with self._lock:
            self.published += 1
            self.receipt = receipt
            if self._staleness is not None:
                self._unseen.append(receipt)
        return receipt

    def discard(self) -> None:
        """Forgets what was kept and not published."""
        self._take()

    def wait(self) -> None:
        """Blocks until the replica has applied all but the last `staleness` publishes. Raises what `replica.wait` raises; what is lost
        is told once.
        """
        while (receipt := self._next_unseen()) is not None:
            try:
                self._replica.wait(receipt, self._timeout)
            except EventLost:
                if self._is_settled(receipt):
                    raise
            else:
                self._is_settled(receipt)

    def _next_unseen(self) -> Accepted | None:
        with self._lock:
            is_due = self._staleness is not None and len(self._unseen) > self._staleness
            return self._unseen[0] if is_due else None

    def _is_settled(self, receipt: Accepted) -> bool:
        """Nobody waits for it any more. False where another thread has seen to it."""
        with self._lock:
            is_first = bool(self._unseen) and self._unseen[0] is receipt
            if is_first:
                self._unseen.popleft()
            return is_first

    def _take(self) -> list[tuple[NDArray[np.int64], torch.Tensor]]:
        with self._lock:
            kept, self._kept = self._kept, []
        return kept


def check_options(staleness: object, nonfinite: str) -> None:
    """Raises `InvalidEvent` for what is no setting of a hook."""
    if staleness is not None and (not isinstance(staleness, int) or isinstance(staleness, bool) or staleness < 0):
        raise InvalidEvent(
            f"staleness={staleness!r}: a number of own publishes that a forward may not see yet, or None"
        )
    if nonfinite not in ("refuse", "skip", "pass"):
        raise InvalidEvent(f"nonfinite={nonfinite!r} is neither 'refuse', 'skip' nor 'pass'")


def _at_end_of_backward(function: Callable[[], object]) -> None:
    """Has `function` called when the backward that runs in this thread is over; what it raises, that raises."""
    # As torch's own data parallel modules do; torch has no public name for it.
    engine = cast(Any, torch.autograd.Variable)._execution_engine
    engine.queue_callback(function)
