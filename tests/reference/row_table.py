"""A table of rows as a plain dict, one row at a time: what a replica's table must be like. Slow, and obviously right."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from paramstream.events.kinds import Table

Row = npt.NDArray[Any]


@dataclass
class ModelRow:
    values: Row
    """Of the table's dtype."""
    state: dict[str, Row] = field(default_factory=dict[str, Row])
    position: int = 0


class RowTableModel:
    """Constant first values only. `exact` optimizers (SGD, Adagrad) give the very bits, the others do within rounding."""

    def __init__(self, definition: Table) -> None:
        self.definition = definition
        self.rows: dict[int, ModelRow] = {}
        self.dtype = np.dtype(getattr(ml_dtypes, definition.dtype, definition.dtype))
        self.number = np.float64 if definition.dtype == "float64" else np.float32

    def initial(self) -> Row:
        return np.full(self.definition.dim, self.definition.init.settings["value"], self.dtype)

    def lookup(self, keys: list[int]) -> tuple[Row, list[bool]]:
        rows = [self.rows[key].values if key in self.rows else self.initial() for key in keys]
        return np.array(rows, self.dtype).reshape(len(keys), self.definition.dim), [key in self.rows for key in keys]

    def write(self, keys: list[int], rows: Row, position: int) -> None:
        for key, row in dict(zip(keys, rows, strict=True)).items():
            held = self._held(key)
            if position > held.position:
                held.values, held.position = row.astype(self.dtype), position

    def apply(self, keys: list[int], grads: Row, position: int) -> None:
        sums: dict[int, Row] = {}
        for key, grad in zip(keys, grads, strict=True):
            sums[key] = sums[key] + grad.astype(self.number) if key in sums else grad.astype(self.number)
        for key, grad in sums.items():
            held = self._held(key)
            if position > held.position:
                self._step(held, grad)
                held.position = position

    def delete(self, keys: list[int], position: int, up_to: int | None = None) -> None:
        for key in keys:
            held = self.rows.get(key)
            if held is not None and position > held.position and (up_to is None or held.position <= up_to):
                del self.rows[key]

    def alter(self, definition: Table) -> None:
        before, after = self.definition.optimizer, definition.optimizer
        if (before and before.kind) != (after and after.kind):
            for row in self.rows.values():
                row.state.clear()
        self.definition = definition

    def _held(self, key: int) -> ModelRow:
        return self.rows.setdefault(key, ModelRow(self.initial()))

    def _step(self, row: ModelRow, grad: Row) -> None:
        optimizer = self.definition.optimizer
        assert optimizer is not None
        of: dict[str, Any] = {name: self.number(value) for name, value in optimizer.settings.items()}
        w: Row = row.values.astype(self.number)
        match optimizer.kind:
            case "sgd":
                w = w - of["lr"] * grad
            case "adagrad":
                s = row.state.get("s", np.full_like(w, of["initial_accumulator_value"])) + grad * grad
                row.state["s"] = s
                w = w - of["lr"] * grad / (np.sqrt(s) + of["eps"])
            case "rowwise_adagrad":
                s = row.state.get("s", np.full(1, of["initial_accumulator_value"], self.number))
                s = s + (grad * grad).mean(dtype=self.number)
                row.state["s"] = s
                w = w - of["lr"] * grad / (np.sqrt(s) + of["eps"])
            case "adam":
                zero, one = np.zeros_like(w), self.number(1)
                t = int(row.state.get("t", np.zeros(1))[0]) + 1
                m = of["beta1"] * row.state.get("m", zero) + (one - of["beta1"]) * grad
                v = of["beta2"] * row.state.get("v", zero) + (one - of["beta2"]) * grad * grad
                row.state.update(m=m, v=v, t=np.array([t]))
                m_hat = m / self.number(1 - optimizer.settings["beta1"] ** t)
                v_hat = v / self.number(1 - optimizer.settings["beta2"] ** t)
                w = w - of["lr"] * m_hat / (np.sqrt(v_hat) + of["eps"])
            case kind:
                raise AssertionError(kind)
        row.values = w.astype(self.dtype)
        assert math.isfinite(float(row.values.astype(np.float64).sum()))
