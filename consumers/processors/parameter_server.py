"""A parameter server: a processor that turns the dense gradients of many trainers into versions of weights.

    server = ps.parameter_server(
        "grads", "weights", optimizer=ps.Adam(lr=1e-3), initial="first", trainers=["trainer-0", "trainer-1"]
    )
    with client.run(server, name="server", state="state-of-server"):
        ...                                # each trainer: pub.publish_dense_gradients(gradients, step=n)

Its state is the weights, the optimizer's numbers, and what has come of steps that are not applied yet, kept with the position of the
input like any processor's. So after any crash it goes on with the same bits, and each gradient is in the weights once.

What counts is decided by what stands in the topic alone:

- A *contribution* is one producer's call for one step. It counts once it is whole, and once for each (producer, step): a trainer
  that died in the middle of a call sends all of it again; what comes a second time is "repeated", and left out.
- Summed by step: step n is applied when every trainer's contribution to it is there, summed in the order of their names, so that it
  does not matter who came first. Steps are applied in rising order. What comes for a step that is applied is "late", and left out; so
  is what waits for a lower step when a higher one is complete, "abandoned": a trainer that is gone for good stops nobody for ever.
- As they come (`trainers=None`): each contribution is applied by itself, in the order of the stream. A producer's steps must rise.
- A contribution with a name, shape or dtype that the weights do not have is "refused" as a whole, and one of a producer that is not
  among `trainers` is of a "stranger". An unfinished one that another one follows is "torn".

All of this is counted; `report=` names an entry of the sink that shows it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from ...errors import InvalidEvent
from ...events.arrays import as_numpy, row_major
from ...events.limits import check_name
from ...events.tables import AnyOptimizer, RowwiseAdagrad, optimizer_payload
from ...events.tensors import describe_tensors
from ...events.validate import check_key, key_bytes
from ...tiers.rows.spec import OptimizerSpec
from ..events import Event
from .contributions import Contribution, receive
from .processor import Processor, State
from .trained import begin, misfit, move, weights_of

_log = logging.getLogger(__name__)

COUNTS = ("applied", "repeated", "late", "abandoned", "refused", "stranger", "torn")

Initial = Literal["first"] | Mapping[str, Any] | Callable[[], Any] | Any


def parameter_server(
    source: str,
    sink: str,
    *,
    optimizer: AnyOptimizer,
    initial: Initial,
    trainers: int | Iterable[str] | None = None,
    combine: Literal["mean", "sum"] = "mean",
    every: int = 1,
    report: str | bytes | None = None,
    ahead: int = 64,
) -> Processor:
    """The processor that trains: dense gradients of topic `source` in, versions of weights into topic `sink`.

    `source` must have one state partition: `client.run` refuses it else. `optimizer`: `ps.SGD`, `ps.Adagrad` or `ps.Adam`.

    `initial`: the first weights: a torch module or mapping, or a function without arguments that gives one (the same in every run);
    they are version 0, published with the first contribution, and steps begin with 1. Or "first": the first contribution of all is no
    gradient but the first weights, and they are the version of its step.

    `trainers`: whose contributions make a step, by producer name, or how many. None: each is applied as it comes.
    `combine`: their "mean" or "sum"; a trainer that leaves a name out gives zeros for it, and a tensor that all leave out stands still.
    `every`: a version is published after every so many updates. Its number is the step; as they come, the count of updates.
    `report`: the key of an entry of the sink that says, with each version, in JSON what counted and what did not.
    `ahead`: how many steps may wait at a time. One more stops the processor, naming the trainers that are missing.

    Low precision weights (float16, bfloat16) are kept in float32 and rounded as they are published. Raises `InvalidEvent`.
    """
    check_name("topic", source)
    check_name("topic", sink)
    if isinstance(optimizer, RowwiseAdagrad):
        raise InvalidEvent("a dense tensor has no rows", remedy="Use ps.Adagrad")
    payload = optimizer_payload(optimizer)
    if combine not in ("mean", "sum"):
        raise InvalidEvent(f"combine must be 'mean' or 'sum', not {combine!r}")
    for what, number in (("every", every), ("ahead", ahead)):
        if not _is_count(number):
            raise InvalidEvent(f"{what}={number!r}; it must be an int of at least 1")
    key = None if report is None else key_bytes(report)
    if key is not None:
        check_key(key)
    names, count = _trainers_of(trainers)
    server = _Server(
        OptimizerSpec(payload.kind, payload.settings), _initial_of(initial), names, count, combine == "mean", every, key, ahead
    )  # fmt: skip
    return Processor(server.step, source, sink, weights=False, partitions=1)


@dataclass(frozen=True, slots=True)
class _Server:
    optimizer: OptimizerSpec
    initial: Callable[[], object] | None
    """None: the first contribution."""
    names: frozenset[str] | None
    """The trainers, where they are named."""
    count: int
    """How many of them make a step; 0: each contribution is applied as it comes."""
    mean: bool
    every: int
    report: bytes | None
    ahead: int

    def step(self, event: Event, state: State, out: Any) -> None:
        if event.kind != "dense_gradients":
            return
        assert event.version is not None
        if not state:
            self._begin(state, out)
        counts = state["counts"]
        wanted = not self._verdict(state, event.producer, event.version)
        given, torn = receive(state["coming"], event, wanted=wanted)
        counts["torn"] += torn
        if given is None:
            return
        verdict = self._verdict(state, given.producer, given.step)
        if not verdict and state["trained"]:
            verdict = self._refusal(state, given)
        if verdict:
            counts[verdict] += 1
        elif not state["trained"]:
            begin(state["trained"], given.gradients)
            self._passed(state, given.producer, given.step)
            self._publish(state, given.step if self.count else 0, out)
        elif self.count:
            self._collect(state, given, out)
        else:
            self._passed(state, given.producer, given.step)
            self._apply(state, [given.gradients], out)

    # --- what counts ---

    def _verdict(self, state: State, producer: str, step: int) -> str:
        """Why nothing of this producer's counts for the step; empty where it does."""
        if self.names is not None and producer not in self.names:
            return "stranger"
        before = state["applied"] if self.count else state["last"].get(producer, -1)
        if step <= before:
            return "repeated" if not self.count and step == before else "late"
        return "repeated" if producer in state["open"].get(step, ()) else ""

    def _refusal(self, state: State, given: Contribution) -> str:
        problem = misfit(state["trained"], given.gradients)
        if not problem:
            return ""
        _log.warning("the gradients of %r for step %d are left out: %s", given.producer, given.step, problem)
        return "refused"

    def _passed(self, state: State, producer: str, step: int) -> None:
        """Nothing more counts for the step (of the producer, where each is applied as it comes)."""
        if self.count:
            state["applied"] = step
        else:
            state["last"][producer] = step

    def _collect(self, state: State, given: Contribution, out: Any) -> None:
        """One more for its step, which may complete it."""
        waiting: dict[int, dict[str, Any]] = state["open"]
        if given.step not in waiting and len(waiting) >= self.ahead:
            raise InvalidEvent(
                f"{len(waiting)} steps wait for contributions, the lowest, {min(waiting)}, has {self._have(waiting[min(waiting)])}",
                version=given.step,
                remedy="Start the trainers that are missing, or run the server with others, or with a greater `ahead`",
            )
        step = waiting.setdefault(given.step, {})
        step[given.producer] = given.gradients
        if len(step) < self.count:
            return
        for lower in [each for each in waiting if each <= given.step]:
            gone = waiting.pop(lower)
            state["counts"]["abandoned"] += len(gone) if lower < given.step else 0
        for producer in [name for name, record in state["coming"].items() if record["step"] <= given.step]:
            # What is left of it comes late.
            state["coming"][producer] |= {"wanted": False, "tensors": {}}
        self._passed(state, given.producer, given.step)
        self._apply(state, [step[producer] for producer in sorted(step)], out)

    def _have(self, step: Mapping[str, Any]) -> str:
        missing = "" if self.names is None else f"; missing: {', '.join(sorted(self.names - step.keys()))}"
        return f"those of {', '.join(sorted(step))}{missing}"

    # --- the weights ---

    def _begin(self, state: State, out: Any) -> None:
        state.update(applied=-1, updates=0, open={}, last={}, coming={}, counts=dict.fromkeys(COUNTS, 0), trained={})
        if self.initial is not None:
            tensors = describe_tensors(self.initial()).values()
            begin(
                state["trained"],
                {each.name: as_numpy(row_major(each.name, each.value), each.dtype, each.shape) for each in tensors},
            )
            state["applied"] = 0
            self._publish(state, 0, out)

    def _apply(self, state: State, contributions: list[dict[str, Any]], out: Any) -> None:
        move(state["trained"], self.optimizer, contributions, self.count if self.mean and self.count else 1)
        state["counts"]["applied"] += len(contributions)
        state["updates"] += 1
        if state["updates"] % self.every == 0:
            self._publish(state, state["applied"] if self.count else state["updates"], out)

    def _publish(self, state: State, version: int, out: Any) -> None:
        if self.report is not None:
            waiting = {str(step): sorted(given) for step, given in sorted(state["open"].items())}
            about = {"version": version, "updates": state["updates"], "counts": state["counts"], "waiting": waiting}
            # First: whoever sees the version has it.
            out.put(self.report, json.dumps(about).encode())
        out.publish_weights(weights_of(state["trained"]), version=version)


def _is_count(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 1


def _trainers_of(trainers: int | Iterable[str] | None) -> tuple[frozenset[str] | None, int]:
    """(their names where they are named, how many there are; 0 for None)."""
    if trainers is None:
        return None, 0
    if isinstance(trainers, int | str):
        if not _is_count(trainers):
            raise InvalidEvent(f"trainers={trainers!r}; they are a number from 1 on, their names, or None")
        return None, cast(int, trainers)
    names = [check_name("producer", name) for name in trainers]
    if not names or len(set(names)) < len(names):
        raise InvalidEvent(f"trainers={names}; there must be some, each named once")
    return frozenset(names), len(names)


def _initial_of(initial: object) -> Callable[[], object] | None:
    """A function that gives the first weights; None for "first"."""
    if isinstance(initial, str) and initial == "first":
        return None
    whole = initial
    if isinstance(initial, Mapping) or hasattr(initial, "state_dict"):
        # As they are now: what the caller does to them later is no part of it.
        kept = {
            name: np.array(as_numpy(row_major(name, each.value), each.dtype, each.shape))
            for name, each in describe_tensors(whole).items()
        }
        return lambda: kept
    if callable(initial):
        return initial
    raise InvalidEvent(
        f"initial={initial!r} gives no weights",
        remedy='Give a module, a mapping, a function that gives one, or "first"',
    )
