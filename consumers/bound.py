"""A torch module kept at the version served: overwritten in place, between forwards and never inside one.

Addresses stay, so optimizers, CUDA graphs and tied parameters go on working. The apply thread never waits for a forward: it
swaps at once where none is running, and otherwise leaves the swap to the last forward that ends. Forwards that want to begin
while a swap is due wait for it, so that threads which spin through forwards cannot put it off for ever. Each looks for itself
which version is served, so that a forward after `rep.wait(receipt)` runs on what was waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from ..errors import SchemaMismatch
from ..events.arrays import as_torch
from .versions import Sealed

PATIENCE_S = 30.0
"""How long a forward waits for others to end so that a due swap gets its gap; then it runs on the version before."""


class Bound:
    """Made by `Replica.bind`. Do not call the module from a thread that one of its own forwards waits for."""

    def __init__(
        self, module: torch.nn.Module, newest: Callable[[], Sealed | None], *, strict: bool, topic: str
    ) -> None:
        """`newest` gives the version served; the caller then calls `refresh` after each change of it."""
        self._newest = newest
        self._strict = strict
        self._topic = topic
        self._targets = {
            name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)
        }
        self._gap = threading.Condition(threading.Lock())
        self._inside = 0
        self._seen: Sealed | None = None
        """The newest version that was looked at: taken, due, or turned down."""
        self._due: Sealed | None = None
        self._depth = threading.local()
        self._version: int | None = None
        self._digest: str | None = None
        self.error: SchemaMismatch | None = None
        """Why the newest version could not be taken; None where it was."""
        self.on_close: Callable[[], None] = lambda: None
        self._hooks = [
            module.register_forward_pre_hook(self._enter, prepend=True),
            module.register_forward_hook(self._leave, always_call=True),
        ]

    @property
    def version(self) -> int | None:
        """The version that the module has; None before the first one."""
        return self._version

    @property
    def digest(self) -> str | None:
        """The digest of digests of that version."""
        return self._digest

    def refresh(self) -> None:
        """Take the version served, or leave it due at the next gap. Waits for a swap under way, never for a forward."""
        with self._gap:
            self._look()
            if self._inside == 0:
                self._swap_due()

    def close(self) -> None:
        """Let go of the module; it stays at its version."""
        self.on_close()
        with self._gap:
            self._drop_due()
            self._gap.notify_all()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # --- hooks: in the thread of the forward ------------------------------------------------------------------------------------

    def _enter(self, _module: torch.nn.Module, _args: Any) -> None:
        depth = getattr(self._depth, "count", 0)
        if depth == 0:
            with self._gap:
                # Whoever was told that a version is served finds it here, even before the apply thread came by.
                self._look()
                if self._due is not None and self._gap.wait_for(lambda: not self._inside, PATIENCE_S):
                    self._swap_due()
                if self._version is None and self.error is not None:
                    raise self.error
                self._inside += 1
        self._depth.count = depth + 1

    def _leave(self, _module: torch.nn.Module, _args: Any, _output: Any) -> None:
        depth = getattr(self._depth, "count", 0)
        if depth == 0:
            # The forward never began: its entry raised.
            return
        self._depth.count = depth - 1
        if depth == 1:
            with self._gap:
                self._inside -= 1
                if self._inside == 0:
                    self._swap_due()
                    self._gap.notify_all()

    # --- under the lock -----------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        newest = self._newest()
        if newest is not None and newest is not self._seen and newest.dense.retain():
            self._drop_due()
            self._seen = self._due = newest

    def _swap_due(self) -> None:
        sealed, self._due = self._due, None
        if sealed is None:
            return
        assert self._inside == 0
        try:
            self.error = self._mismatch(sealed)
            if self.error is None:
                self._copy(sealed)
                self._version, self._digest = sealed.version, sealed.digest
        finally:
            sealed.dense.release()
            self._gap.notify_all()

    def _copy(self, sealed: Sealed) -> None:
        buffer = memoryview(sealed.dense.slot.private())
        with torch.no_grad():
            for name, target in self._targets.items():
                spec = sealed.specs.get(name)
                if spec is None or tuple(target.shape) != spec.shape:
                    continue
                extent = sealed.dense.extents[name]
                source = as_torch(buffer[extent.offset : extent.offset + extent.nbytes], spec.dtype, spec.shape)
                # Tensors made under inference mode may only be changed there.
                with torch.inference_mode() if target.is_inference() else nullcontext():
                    target.copy_(source)

    def _mismatch(self, sealed: Sealed) -> SchemaMismatch | None:
        if not self._strict:
            return None
        unmatched = sorted(self._targets.keys() - sealed.specs.keys())
        missing = sorted(sealed.specs.keys() - self._targets.keys())
        shapes = sorted(
            f"{name}: {tuple(target.shape)} here, {sealed.specs[name].shape} there"
            for name, target in self._targets.items()
            if name in sealed.specs and tuple(target.shape) != sealed.specs[name].shape
        )
        problems = [
            f"{what}: {', '.join(names)}"
            for what, names in (
                ("the version lacks", unmatched),
                ("the module lacks", missing),
                ("other shapes", shapes),
            )
            if names
        ]
        if not problems:
            return None
        return SchemaMismatch(
            f"the module does not match the version: {'; '.join(problems)}",
            topic=self._topic,
            version=sealed.version,
            remedy="Bind a module with the same names and shapes, or use strict=False",
        )

    def _drop_due(self) -> None:
        if self._due is not None:
            self._due.dense.release()
            self._due = None
