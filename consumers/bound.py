"""A torch module kept at the version served: overwritten in place, between forwards and never inside one.

    bound = rep.bind(module, rename={"module.w": "w"})
    with bound.hold() as w:             # one version for a whole generation; w.version says which
        ...
    bound.switch(7)                     # by hand, and not by itself any more
    bound.follow()                      # by itself again

Addresses stay, so optimizers, CUDA graphs and tied parameters go on working. The apply thread never waits for a forward: it
swaps at once where nobody is inside, and otherwise leaves the swap to the last guest that leaves. Each that enters looks for
itself which version is served, so that a forward after `rep.wait(receipt)` runs on what was waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from typing import cast as cast_to

import torch

from ..errors import CorruptTier, InvalidEvent, ParamstreamError, ParamstreamTimeout, StorageFull, VersionNotHeld
from ..events.arrays import as_torch
from ..transport.waiting import bounded
from .casting import Cast
from .gap import Gap
from .matching import Match, Rename, SwapReport, Target, match
from .versions import Sealed
from .views import Weights

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class TopicView:
    """What a bound module needs of its replica's topic. All of it may be called from any thread, and takes no lock."""

    topic: str
    newest: Callable[[], Sealed | None]
    """The version served."""
    find: Callable[[int], Sealed]
    """A version that is kept. Raises `VersionNotHeld`."""
    view: Callable[[Sealed], Weights]
    """Of a version that the caller has retained."""


class Bound:
    """Made by `Replica.bind`. Thread-safe. Do not call the module from a thread that one of its own forwards waits for."""

    def __init__(
        self,
        module: torch.nn.Module,
        served: TopicView,
        *,
        rename: Rename | None,
        strict: bool,
        cast: Cast,
        follow: bool,
    ) -> None:
        """Takes the version served, if there is one. With `follow` the caller then calls `refresh` after each change of it."""
        if not isinstance(cast_to(object, module), torch.nn.Module):
            raise InvalidEvent(f"a torch module can be bound, not {type(module).__name__}", topic=served.topic)
        self.topic = served.topic
        self._served = served
        self._rename = rename
        self._strict = strict
        self._cast: Cast = cast
        self._targets = {
            name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)
        }
        self._takes = {
            name: Target(str(target.dtype).removeprefix("torch."), tuple(target.shape))
            for name, target in self._targets.items()
        }
        self._gap = Gap()
        self._changed = self._gap.changed
        self._one_switch = threading.Lock()
        self._seen: Sealed | None = None
        """The last version that was looked at: taken, due, or turned down."""
        self._due: Sealed | None = None
        """Retained, until it is taken or called off."""
        self._fit: Match
        """How the version that is due fits."""
        self._current: Sealed | None = None
        """The version that the module has; retained, so that a hold can show it, and a failed swap can be taken back."""
        self._pairs: Mapping[str, str] = {}
        """Of the version that it has: name in the module → name in the stream."""
        self._version: int | None = None
        self._digest: str | None = None
        self._torn: ParamstreamError | None = None
        """A swap failed half way and could not be taken back: nothing may run until one succeeds."""
        self._closed = False
        self.report: SwapReport | None = None
        """What became of the last version that was to be taken; None before the first one."""
        self.error: ParamstreamError | None = None
        """Why the last version could not be taken; None where it was."""
        self.on_close: Callable[[], None] = lambda: None
        self._hooks = [
            module.register_forward_pre_hook(self._enter, prepend=True),
            module.register_forward_hook(self._leave, always_call=True),
        ]
        self._follows = True
        self.refresh()
        self._follows = follow

    @property
    def version(self) -> int | None:
        """The version that the module has; None before the first one."""
        return self._version

    @property
    def digest(self) -> str | None:
        """The digest of digests of that version."""
        return self._digest

    @property
    def follows(self) -> bool:
        """Whether it takes each version served by itself; not after `switch`, and not with `follow=False`."""
        return self._follows

    @contextmanager
    def hold(self) -> Generator[Weights]:
        """No swap until the block ends; gives the weights of the version held, under their names in the stream.

        Holds nest and may overlap in any number of threads; newer versions wait, and the last that leaves takes the newest. One
        that begins while a version waits lets it in first, for up to 30 s, unless its thread is inside already: so do not wait
        in a block for another thread's hold. A held version stays in memory beside those that the replica keeps.

        Raises `VersionNotHeld` before the first version, or why the first one could not be taken.
        """
        with self._changed:
            self._check_open()
            self._look()
            if self._due is not None:
                self._gap.begin_hold(lambda: self._due is not None)
                self._swap_in_gap()
            held = self._held()
            holder = self._gap.enter_hold()
        try:
            yield self._served.view(held)
        finally:
            with self._changed:
                self._gap.leave_hold(holder)
                held.dense.release()
                self._swap_in_gap()
                self._changed.notify_all()

    def switch(self, version: int, timeout: float = TIMEOUT_S) -> None:
        """Take a kept version in the next gap, and stay there until `switch` or `follow` is called.

        Blocks until the module has it; forwards and holds that want to begin wait meanwhile. Replicas that must go together
        bind with `follow=False` and keep enough versions: no module ever has parts of two, and none goes ahead by itself.

        Raises `VersionNotHeld` where it is not kept and `SchemaMismatch` where it does not fit, `ParamstreamTimeout` where
        forwards or holds did not end in time, and `InvalidEvent` inside of one; the module then stays at its version.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            if self._gap.is_inside():
                raise InvalidEvent(
                    "a thread cannot switch inside its own forward or hold", topic=self.topic, version=version
                )
        if not self._one_switch.acquire(timeout=bounded(max(0.0, timeout))):
            raise self._late(version, "another switch did not end")
        try:
            with self._changed:
                self._switch(version, deadline)
        finally:
            self._one_switch.release()

    def follow(self) -> None:
        """Take the version served from now on, at the next gap, and each one after it by itself. Waits for a `switch` under way."""
        with self._one_switch, self._changed:
            self._follows = True
            self._seen = None
            self._look()
            self._swap_in_gap()

    def refresh(self) -> None:
        """Take the version served, or leave it due at the next gap. Waits for a swap under way, never for a forward."""
        with self._changed:
            self._look()
            self._swap_in_gap()

    def close(self, timeout: float = TIMEOUT_S) -> None:
        """Let go of the module; it stays at its version. A second call changes nothing. `timeout` as every handle's `close`
        takes one: only a swap under way is waited for.
        """
        self.on_close()
        with self._changed:
            self._closed = True
            self._drop_due()
            if self._current is not None:
                self._current.dense.release()
                self._current = None
            self._changed.notify_all()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- hooks: in the thread of the forward ------------------------------------------------------------------------------------

    def _enter(self, _module: torch.nn.Module, _args: Any) -> None:
        if not self._gap.in_forward():
            with self._changed:
                # Whoever was told that a version is served finds it here, even before the apply thread came by.
                self._look()
                if self._due is not None:
                    self._gap.begin_forward(lambda: self._due is not None)
                    self._swap_in_gap()
                problem = self._torn or (self.error if self._version is None else None)
                if problem is not None:
                    raise problem
                self._gap.enter_forward()
        self._gap.deepen()

    def _leave(self, _module: torch.nn.Module, _args: Any, _output: Any) -> None:
        if self._gap.rise():
            with self._changed:
                self._gap.leave_forward()
                self._swap_in_gap()
                self._changed.notify_all()

    # --- under the lock -----------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if not self._follows or self._closed:
            return
        newest = self._served.newest()
        if newest is not None and newest is not self._seen and newest.dense.retain():
            self._propose(newest)

    def _propose(self, sealed: Sealed) -> None:
        """`sealed`, whose reference is taken over, is due from now on; or does not fit, and is turned down at once."""
        self._seen = sealed
        fit = match(sealed, self._takes, self._rename, self._strict, self._cast, self.topic)
        self.error = fit.error
        if fit.error is None:
            self._drop_due()
            self._due, self._fit = sealed, fit
        else:
            self.report = fit.report
            sealed.dense.release()

    def _held(self) -> Sealed:
        """The version that the module has, retained once more."""
        if self._torn is not None:
            raise self._torn
        if self._current is None or not self._current.dense.retain():
            raise self.error or VersionNotHeld(
                "the module has no version yet", topic=self.topic, remedy="Use rep.wait_version, or switch"
            )
        return self._current

    def _switch(self, version: int, deadline: float) -> None:
        self._check_open()
        wanted = self._kept(version)
        self._follows = False
        self._drop_due()
        self._propose(wanted)
        self._changed.wait_for(
            lambda: self._due is not wanted or self._gap.is_empty, bounded(max(0.0, deadline - time.monotonic()))
        )
        self._swap_in_gap()
        if self._due is wanted:
            self._drop_due()
            self._changed.notify_all()
            raise self._late(version, "forwards or holds did not end")
        self._check_open()
        if self._current is not wanted and self.error is not None:
            raise self.error

    def _kept(self, version: int) -> Sealed:
        """Retained. The version that the module has counts as kept."""
        while True:
            try:
                found = self._served.find(version)
            except VersionNotHeld:
                if self._current is None or self._current.version != version:
                    raise
                found = self._current
            if found.dense.retain():
                return found

    def _swap_in_gap(self) -> None:
        if self._due is None or not self._gap.is_empty:
            return
        due, self._due = self._due, None
        self.report = self._fit.report
        self._overwrite(due, self._fit.pairs)
        self._changed.notify_all()

    def _overwrite(self, due: Sealed, pairs: Mapping[str, str]) -> None:
        """All of `pairs`, or none of them where a copy fails. Takes over the reference to `due`."""
        before, written = self._current, list[str]()
        try:
            self._copy(due, pairs, pairs, written)
        except (RuntimeError, TypeError, ValueError, StorageFull, CorruptTier) as problem:
            self.report = SwapReport(due.version, 0, len(due.specs), (), (), ())
            self.error = ParamstreamError(
                f"the version could not be copied into the module: {problem}",
                topic=self.topic,
                version=due.version,
                item=next((name for name in pairs if name not in written), None),
            )
            self.error.__cause__ = problem
            due.dense.release()
            if written and not self._put_back(before, written):
                self._torn = self.error
            return
        self._current, self._pairs, self._torn = due, pairs, None
        self._version, self._digest = due.version, due.digest
        if before is not None:
            before.dense.release()

    def _put_back(self, before: Sealed | None, written: list[str]) -> bool:
        """What was overwritten gets its values of `before` again; False where it has none or they do not go in."""
        if before is None or any(name not in self._pairs for name in written):
            return False
        try:
            self._copy(before, self._pairs, written, [])
        except (RuntimeError, TypeError, ValueError, StorageFull, CorruptTier):
            return False
        return True

    def _copy(self, sealed: Sealed, pairs: Mapping[str, str], names: Iterable[str], written: list[str]) -> None:
        """Into the tensors `names` of the module; each is added to `written` when it has its values."""
        buffer = memoryview(sealed.dense.private())
        with torch.no_grad():
            for name in names:
                target, spec = self._targets[name], sealed.specs[pairs[name]]
                extent = sealed.dense.extents[pairs[name]]
                source = as_torch(buffer[extent.offset : extent.offset + extent.nbytes], spec.dtype, spec.shape)
                # Tensors made under inference mode may only be changed there.
                with torch.inference_mode() if target.is_inference() else nullcontext():
                    target.copy_(source)
                written.append(name)

    def _drop_due(self) -> None:
        if self._due is not None:
            self._due.dense.release()
            self._due = None

    def _check_open(self) -> None:
        if self._closed:
            raise ParamstreamError("the module is not bound any more", topic=self.topic)

    def _late(self, version: int, problem: str) -> ParamstreamTimeout:
        return ParamstreamTimeout(
            f"the module could not be switched in time: {problem}", topic=self.topic, version=version
        )
