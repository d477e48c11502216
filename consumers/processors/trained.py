"""Weights that gradients move, with the numbers of their optimizer: plain data, for a processor's state.

    name → {"dtype", "shape", "values", "kind", "numbers"}      values and numbers are flat arrays of the dtype that is computed in

Low precision values are kept in float32 and rounded as they are published: small updates would be lost in them. The updates are
those of row tables (`tiers/rows/optimizers.py`), and so have their bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...events.arrays import DTYPES
from ...tiers.rows.optimizers import step
from ...tiers.rows.spec import OptimizerSpec

Trained = dict[str, dict[str, Any]]
Gradients = Mapping[str, npt.NDArray[Any]]

COMPUTED_IN = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
"""The dtypes of weights that gradients move; tensors of others stand still."""

BLOCK = 1 << 16
"""How many values the optimizer takes at a time, as one row: as many as stay in a core's cache. All it does goes value by value."""


def begin(trained: Trained, tensors: Gradients) -> None:
    """Take these as the first weights; copied."""
    for name, given in tensors.items():
        dtype = given.dtype.name
        values = given.reshape(-1).astype(DTYPES[COMPUTED_IN.get(dtype, dtype)], copy=True)
        trained[name] = {"dtype": dtype, "shape": given.shape, "values": values, "kind": "", "numbers": None}


def misfit(trained: Trained, gradients: Gradients) -> str:
    """Why these are no gradients of the weights; empty where they are. A name may be left out."""
    for name, gradient in gradients.items():
        tensor = trained.get(name)
        if tensor is None:
            return f"the weights have no tensor {name!r}"
        if gradient.shape != tensor["shape"]:
            return f"{name!r} is of shape {gradient.shape}, the weights of {tensor['shape']}"
        if gradient.dtype.name not in COMPUTED_IN or tensor["dtype"] not in COMPUTED_IN:
            return f"{name!r} is {gradient.dtype.name} for weights of {tensor['dtype']}, which is no gradient"
    return ""


def move(trained: Trained, optimizer: OptimizerSpec, contributions: Sequence[Gradients], divide_by: int) -> None:
    """One update with the sum of all, in the order given, over `divide_by`. A tensor that none of them has stands still."""
    for name, tensor in trained.items():
        given = [each[name] for each in contributions if name in each]
        if given:
            dtype = tensor["values"].dtype
            total = given[0].reshape(-1).astype(dtype)
            for other in given[1:]:
                total += other.reshape(-1).astype(dtype)
            if divide_by > 1:
                total /= dtype.type(divide_by)
            _update(tensor, optimizer, total)


def weights_of(trained: Trained) -> dict[str, npt.NDArray[Any]]:
    """In their dtypes and shapes; of the same memory where nothing is rounded."""
    return {
        name: tensor["values"].astype(DTYPES[tensor["dtype"]], copy=False).reshape(tensor["shape"])
        for name, tensor in trained.items()
    }


def _update(tensor: dict[str, Any], optimizer: OptimizerSpec, gradient: npt.NDArray[Any]) -> None:
    values: npt.NDArray[Any] = tensor["values"]
    full, rest = divmod(values.size, BLOCK)
    width = optimizer.state_width(BLOCK)
    if tensor["kind"] != optimizer.kind:
        # The numbers of another kind mean nothing to this one.
        count = full * width + (optimizer.state_width(rest) if rest else 0)
        tensor["kind"], tensor["numbers"] = optimizer.kind, np.full(count, optimizer.initial_state, values.dtype)
    for block in range(full + (rest > 0)):
        some = slice(block * BLOCK, min(values.size, (block + 1) * BLOCK))
        numbers = tensor["numbers"][block * width :][: optimizer.state_width(some.stop - some.start)]
        step(optimizer, values[some][None], numbers[None], gradient[some][None])
