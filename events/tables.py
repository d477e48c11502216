"""What a table of rows is created with: how it applies gradients, and what a row is before anybody wrote it.

    client.create_table("ads", "users", dim=64, optimizer=ps.RowwiseAdagrad(lr=0.05), init=ps.Normal(std=0.01, seed=7))
    client.alter_table("ads", "users", optimizer=ps.RowwiseAdagrad(lr=0.01))

Every value here is frozen and checked when it is made. In the definitions below w is a row, g the sum of its gradients in one event,
and all operations go element by element unless it is said otherwise; state begins with the row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import cast

import numpy as np

from ..errors import InvalidEvent
from .arrays import DTYPES
from .kinds import Initializer, Optimizer, Table
from .limits import check_name

ROW_DTYPES = ("float32", "float64", "float16", "bfloat16")
"""What the values of a row may be."""

MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SGD:
    """w ← w - lr·g. No state."""

    lr: float
    """The learning rate."""

    def __post_init__(self) -> None:
        check_optimizer(optimizer_payload(self))


@dataclass(frozen=True, slots=True)
class Adagrad:
    """s ← s + g², then w ← w - lr·g / (√s + eps). State: s, as wide as the row."""

    lr: float = 1e-2
    """The learning rate."""
    eps: float = 1e-10
    """Added to the root, so that nothing is divided by 0."""
    initial_accumulator_value: float = 0.0
    """What s begins with."""

    def __post_init__(self) -> None:
        check_optimizer(optimizer_payload(self))


@dataclass(frozen=True, slots=True)
class RowwiseAdagrad:
    """s ← s + mean(g²) over the row, then w ← w - lr·g / (√s + eps). State: s, one number a row: a table of dim 64 keeps a 64th of what
    `Adagrad` keeps.
    """

    lr: float = 1e-2
    """The learning rate."""
    eps: float = 1e-10
    """Added to the root, so that nothing is divided by 0."""
    initial_accumulator_value: float = 0.0
    """What s begins with."""

    def __post_init__(self) -> None:
        check_optimizer(optimizer_payload(self))


@dataclass(frozen=True, slots=True)
class Adam:
    """t ← t + 1, m ← beta1·m + (1 - beta1)·g, v ← beta2·v + (1 - beta2)·g², then w ← w - lr·m̂ / (√v̂ + eps) with m̂ = m / (1 - beta1ᵗ)
    and v̂ = v / (1 - beta2ᵗ). State: m and v, each as wide as the row, and t, which counts the events that had a gradient for the row.

    A row that an event has no gradient for stands still in it: nothing of it decays.
    """

    lr: float = 1e-3
    """The learning rate."""
    beta1: float = 0.9
    """How much of the mean of gradients stays at each step: from 0 to below 1."""
    beta2: float = 0.999
    """How much of the mean of their squares stays: from 0 to below 1."""
    eps: float = 1e-8
    """Added to the root, so that nothing is divided by 0."""

    def __post_init__(self) -> None:
        check_optimizer(optimizer_payload(self))


@dataclass(frozen=True, slots=True)
class Normal:
    """A row's first values are drawn from the normal distribution around 0: a function of `seed`, the row's key and the place in the
    row, the same bits on every replica.
    """

    std: float
    """The standard deviation, over 0."""
    seed: int = 0
    """From 0 to 2**63 - 1."""

    def __post_init__(self) -> None:
        _check_initializer(init_payload(self))


@dataclass(frozen=True, slots=True)
class Uniform:
    """A row's first values are drawn evenly from `lo` up to, and not including, `hi`: a function of `seed`, the row's key and the place
    in the row, the same bits on every replica.
    """

    lo: float
    hi: float
    seed: int = 0
    """From 0 to 2**63 - 1."""

    def __post_init__(self) -> None:
        _check_initializer(init_payload(self))


AnyOptimizer = SGD | Adagrad | RowwiseAdagrad | Adam
AnyInit = float | Normal | Uniform

_KINDS: dict[type[AnyOptimizer], str] = {
    SGD: "sgd",
    Adagrad: "adagrad",
    RowwiseAdagrad: "rowwise_adagrad",
    Adam: "adam",
}
_SETTINGS: dict[str, tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(made)) for made, kind in _KINDS.items()
}
_INIT_SETTINGS = {"constant": ("value",), "normal": ("std",), "uniform": ("lo", "hi")}


def optimizer_payload(optimizer: AnyOptimizer) -> Optimizer:
    """As it travels. Raises `InvalidEvent` for what is no optimizer, or has a setting that is no number."""
    kind = _KINDS.get(type(optimizer))
    if kind is None:
        raise InvalidEvent(
            f"{optimizer!r} is no optimizer", remedy="Give ps.SGD, ps.Adagrad, ps.RowwiseAdagrad or ps.Adam, made"
        )
    return Optimizer(kind, {name: _number(name, getattr(optimizer, name)) for name in _SETTINGS[kind]})


def init_payload(init: AnyInit) -> Initializer:
    """As it travels. Raises `InvalidEvent` for what is neither a number, `Normal` nor `Uniform`."""
    match init:
        case Normal():
            return Initializer("normal", {"std": _number("std", init.std)}, _seed(init.seed))
        case Uniform():
            settings = {"lo": _number("lo", init.lo), "hi": _number("hi", init.hi)}
            return Initializer("uniform", settings, _seed(init.seed))
        case _:
            return Initializer("constant", {"value": _number("init", init)})


def definition_of(
    table: str,
    dim: int,
    dtype: str,
    optimizer: AnyOptimizer | None = None,
    init: AnyInit = 0.0,
    expire_after: float | None = None,
) -> Table:
    """A table as users describe it; `expire_after` in seconds. Raises `InvalidEvent` for what has no number where one belongs;
    the rest is for `validate.check_table`.
    """
    check_name("table", table)
    if expire_after is not None and not math.isfinite(_number("expire_after", expire_after) * 1e9):
        raise InvalidEvent(f"rows cannot expire after {expire_after} s", item=table, remedy="Give seconds, or None")
    return Table(
        table,
        int(dim) if isinstance(cast(object, dim), np.integer) else dim,
        dtype,
        None if optimizer is None else optimizer_payload(optimizer),
        init_payload(init),
        None if expire_after is None else int(expire_after * 1e9),
    )


def check_optimizer(optimizer: Optimizer) -> None:
    """Raises `InvalidEvent` for an unknown kind, a setting that is missing, unknown or not finite, or one that is out of its range."""
    settings = _checked_settings("optimizer", optimizer.kind, optimizer.settings, _SETTINGS)
    for name, value in settings.items():
        if name.startswith("beta") and not 0 <= value < 1:
            raise InvalidEvent(f"{name}={value}; it must be from 0 to below 1")
        if value < 0:
            raise InvalidEvent(f"{name}={value}; it must not be negative")


def check_init(table: Table) -> None:
    """Raises `InvalidEvent` for first values that there cannot be, or that the table's dtype does not hold."""
    init = table.init
    _check_initializer(init)
    for name, value in init.settings.items():
        with np.errstate(over="ignore"):
            held = np.asarray(value).astype(DTYPES[table.dtype])
        if not np.isfinite(held):
            raise InvalidEvent(f"{name}={value} is more than a {table.dtype} holds", item=table.table)


def _check_initializer(init: Initializer) -> None:
    settings = _checked_settings("initializer", init.kind, init.settings, _INIT_SETTINGS)
    _seed(init.seed)
    if init.kind == "normal" and settings["std"] <= 0:
        raise InvalidEvent(
            f"std={settings['std']}; it must be over 0", remedy="For constant first values give init=0.0"
        )
    if init.kind == "uniform" and not (
        settings["lo"] < settings["hi"] and math.isfinite(settings["hi"] - settings["lo"])
    ):
        raise InvalidEvent(f"lo={settings['lo']} and hi={settings['hi']}; lo must be below hi")


def _checked_settings(
    what: str, kind: str, settings: dict[str, float], known: dict[str, tuple[str, ...]]
) -> dict[str, float]:
    names = known.get(kind)
    if names is None:
        raise InvalidEvent(f"there is no {what} {kind!r}", remedy=f"Use one of {', '.join(known)}")
    if set(settings) != set(names):
        raise InvalidEvent(f"the {what} {kind!r} needs {', '.join(names)}, not {', '.join(settings) or 'nothing'}")
    for name, value in settings.items():
        if not math.isfinite(value):
            raise InvalidEvent(f"{name}={value}; it must be a finite number")
    return settings


def _number(name: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float | np.floating | np.integer):
        raise InvalidEvent(f"{name}={given!r} is no number")
    try:
        return float(cast(float, given))
    except OverflowError:
        raise InvalidEvent(f"{name}={given!r} is more than a float holds") from None


def _seed(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MAX_SEED:
        raise InvalidEvent(f"seed={given!r}; it must be an int from 0 to 2**63 - 1")
    return given
