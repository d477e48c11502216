"""What a row table is: its width, its dtype, how gradients change its rows, and what a row holds before it was written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np

from ...errors import InvalidEvent

OPTIMIZER_SETTINGS: Final[dict[str, frozenset[str]]] = {
    "sgd": frozenset({"lr"}),
    "adagrad": frozenset({"lr", "eps", "initial_accumulator_value"}),
    "rowwise_adagrad": frozenset({"lr", "eps", "initial_accumulator_value"}),
    "adam": frozenset({"lr", "beta1", "beta2", "eps"}),
}
"""The kinds of optimizer, and what each one is told."""

INITIAL_SETTINGS: Final[dict[str, frozenset[str]]] = {
    "constant": frozenset({"value"}),
    "normal": frozenset({"std"}),
    "uniform": frozenset({"lo", "hi"}),
}
"""The kinds of initial values, and what each one is told."""


def _check(what: str, kind: str, settings: dict[str, float], known: dict[str, frozenset[str]]) -> None:
    if kind not in known:
        raise InvalidEvent(f"no {what} is called {kind!r}", remedy=f"There are {', '.join(sorted(known))}")
    if known[kind] ^ settings.keys():
        raise InvalidEvent(f"the {what} {kind!r} needs the settings {sorted(known[kind])}, not {sorted(settings)}")
    wrong = [name for name, value in settings.items() if not math.isfinite(value)]
    if wrong:
        raise InvalidEvent(f"the {what} {kind!r} has settings that are no finite numbers: {sorted(wrong)}")


@dataclass(frozen=True)
class OptimizerSpec:
    """How gradients change a row. Raises `InvalidEvent` for a kind or settings that are not known."""

    kind: str
    """"sgd" | "adagrad" | "rowwise_adagrad" | "adam"."""
    settings: dict[str, float]
    """By name as `torch.optim` calls them; all of `OPTIMIZER_SETTINGS[kind]` and no other."""

    def __post_init__(self) -> None:
        _check("optimizer", self.kind, self.settings, OPTIMIZER_SETTINGS)

    def state_width(self, dim: int) -> int:
        """Numbers of state beside a row of `dim` values."""
        return {"sgd": 0, "adagrad": dim, "rowwise_adagrad": 1, "adam": 2 * dim + 1}[self.kind]

    @property
    def initial_state(self) -> float:
        """What every number of a new row's state is."""
        return self.settings.get("initial_accumulator_value", 0.0)


@dataclass(frozen=True)
class InitSpec:
    """What a row holds before it was written, from (seed, key, column) alone. Raises `InvalidEvent` as `OptimizerSpec`."""

    kind: str = "constant"
    """"constant" | "normal" | "uniform"."""
    settings: dict[str, float] = field(default_factory=lambda: {"value": 0.0})
    """All of `INITIAL_SETTINGS[kind]` and no other."""
    seed: int = 0
    """Taken modulo 2**64; a constant has no use for it."""

    def __post_init__(self) -> None:
        _check("initial value", self.kind, self.settings, INITIAL_SETTINGS)


@dataclass(frozen=True)
class RowSpec:
    """A table of rows: int64 key → `dim` (≥ 1) values of `dtype`. Raises `InvalidEvent` for what cannot be."""

    dim: int
    dtype: str
    """A name of numpy's or ml_dtypes': "float32", "float64", "float16", "bfloat16", …"""
    optimizer: OptimizerSpec | None = None
    """None: rows are only written, and a gradient is refused."""
    init: InitSpec = field(default_factory=InitSpec)

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise InvalidEvent(f"a row has at least one value, not {self.dim}")
        if self.optimizer is not None and not self.is_floating:
            raise InvalidEvent(f"rows of {self.dtype} cannot have an optimizer", remedy="Use a dtype of floats")

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """`dtype` as numpy has it."""
        return _dtype_of(self.dtype)

    @property
    def is_floating(self) -> bool:
        """Whether values are floats of some width."""
        return self.value_dtype.kind == "f" or (hasattr(ml_dtypes, self.dtype) and "float" in self.dtype)

    @property
    def accumulate_dtype(self) -> np.dtype[Any]:
        """What gradients are summed in, what an optimizer computes in, and what state is kept in: float64 for float64, else float32."""
        return np.dtype(np.float64 if self.dtype == "float64" else np.float32)

    @property
    def kind(self) -> str:
        """The kind of optimizer that a row's state is of; "" for none."""
        return "" if self.optimizer is None else self.optimizer.kind

    @property
    def state_width(self) -> int:
        """Numbers of state beside each row."""
        return 0 if self.optimizer is None else self.optimizer.state_width(self.dim)

    @property
    def initial_state(self) -> float:
        """What every number of a new row's state is."""
        return 0.0 if self.optimizer is None else self.optimizer.initial_state


@cache  # Each event asks for it.
def _dtype_of(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        raise InvalidEvent(f"no dtype is called {name!r}") from None
