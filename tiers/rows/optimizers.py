"""How each optimizer changes a row and its state, in numpy: the definition that the compiled kernels follow bit for bit.

All is computed in the table's accumulate dtype (float32, or float64 for tables of float64), one rounding an operation, in the order
written here; `torch.optim` gives the same within a few units of the last place. Settings are rounded to that dtype first. A result
that is NaN gets one bit pattern, since processors differ in the others.

- SGD: w ← w - lr·g.
- Adagrad (state s, one number a value): s ← s + g·g; w ← w - lr·g / (√s + eps).
- Rowwise Adagrad (state s, one number a row, as FBGEMM and torchrec have it): s ← s + mean(g·g); w ← w - (lr / (√s + eps))·g.
- Adam (state m, v, t; `t` counts *this row's* gradients, so a row without one stands still: what is called lazy or sparse Adam):
  t ← t + 1; m ← m + (1 - beta1)·(g - m); v ← beta2·v + (1 - beta2)·g·g; w ← w - a·m / (√v·b + eps) with a = lr / (1 - beta1ᵗ) and
  b = 1 / √(1 - beta2ᵗ), both computed in float64. `t` is kept as a float and stands still at 2²⁴, where both powers are long 0.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .spec import OptimizerSpec

LANES: Final = 16
"""A sum over a row goes by lanes: lane j adds up the values j, j + 16, j + 32, … in that order, then lanes are added pairwise: j and
j + 8, j and j + 4, j and j + 2, and the last two."""

MAX_STEPS: Final = 1 << 24
"""Where Adam's count of a row stands still: float32 counts no further."""

Floats = NDArray[Any]


def step(optimizer: OptimizerSpec, values: Floats, state: Floats, gradients: Floats) -> None:
    """Changes `values` (n, dim) and `state` (n, width) in place; all three arrays are of the accumulate dtype."""
    with np.errstate(all="ignore"):
        {"sgd": _sgd, "adagrad": _adagrad, "rowwise_adagrad": _rowwise, "adam": _adam}[optimizer.kind](
            optimizer, values, state, gradients
        )
    _one_nan(values)
    _one_nan(state)


def _sgd(optimizer: OptimizerSpec, values: Floats, state: Floats, gradients: Floats) -> None:
    values -= values.dtype.type(optimizer.settings["lr"]) * gradients


def _adagrad(optimizer: OptimizerSpec, values: Floats, state: Floats, gradients: Floats) -> None:
    number = values.dtype.type
    rate, eps = number(optimizer.settings["lr"]), number(optimizer.settings["eps"])
    state += gradients * gradients
    values -= rate * gradients / (np.sqrt(state) + eps)


def _rowwise(optimizer: OptimizerSpec, values: Floats, state: Floats, gradients: Floats) -> None:
    number = values.dtype.type
    rate, eps = number(optimizer.settings["lr"]), number(optimizer.settings["eps"])
    state += (sum_of_squares(gradients) / number(values.shape[1]))[:, None]
    values -= (rate / (np.sqrt(state) + eps)) * gradients


def _adam(optimizer: OptimizerSpec, values: Floats, state: Floats, gradients: Floats) -> None:
    number, dim = values.dtype.type, values.shape[1]
    settings = optimizer.settings
    first, second, count = state[:, :dim], state[:, dim : 2 * dim], state[:, 2 * dim]
    count += number(1)
    np.minimum(count, number(MAX_STEPS), out=count)
    first += number(1 - settings["beta1"]) * (gradients - first)
    second *= number(settings["beta2"])
    second += number(1 - settings["beta2"]) * gradients * gradients
    steps = count.astype(np.int64)
    rate = (settings["lr"] / (1 - power(settings["beta1"], steps))).astype(values.dtype)[:, None]
    scale = (1 / np.sqrt(1 - power(settings["beta2"], steps))).astype(values.dtype)[:, None]
    values -= rate * first / (np.sqrt(second) * scale + number(settings["eps"]))


def power(base: float, exponents: NDArray[np.int64]) -> NDArray[np.float64]:
    """`base` to each exponent (≥ 0), by squaring from the lowest bit up: a library's `pow` differs between machines."""
    result, square, left = np.ones(len(exponents)), np.float64(base), exponents.copy()
    while left.any():
        result = np.where(left & 1, result * square, result)
        square = square * square
        left >>= 1
    return result


def sum_of_squares(rows: Floats) -> Floats:
    """(n,): the sum of each row's squares, added up by `LANES`."""
    count, dim = rows.shape
    lanes = np.zeros((count, LANES), rows.dtype)
    for start in range(0, dim, LANES):
        part = rows[:, start : start + LANES]
        lanes[:, : part.shape[1]] += part * part
    width = LANES
    while width > 1:
        width //= 2
        lanes[:, :width] += lanes[:, width : 2 * width]
    return lanes[:, 0]


def _one_nan(numbers: Floats) -> None:
    numbers[np.isnan(numbers)] = np.nan
