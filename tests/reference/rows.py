"""The reference for rows of float64: what events make of them, number by number in plain Python."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from paramstream.events.codec import EventFrame
from paramstream.events.kinds import DeleteRows, Gradients, Rows, Table

Numbers = list[float]


@dataclass
class Row:
    values: Numbers
    state: Numbers
    position: int


@dataclass
class ReferenceTable:
    """One table of one partition. First values are 0."""

    definition: Table
    rows: dict[int, Row] = field(default_factory=dict[int, Row])

    def alter(self, definition: Table) -> None:
        if _kind(definition) != _kind(self.definition):
            for row in self.rows.values():
                row.state = _first_state(definition)
        self.definition = definition

    def write(self, keys: list[int], rows: list[Numbers], position: int) -> None:
        for key, values in zip(keys, rows, strict=True):
            state = self.rows[key].state if key in self.rows else _first_state(self.definition)
            self.rows[key] = Row(values, state, position)

    def learn(self, keys: list[int], grads: list[Numbers], position: int) -> None:
        sums: dict[int, Numbers] = {}
        for key, grad in zip(keys, grads, strict=True):
            sums[key] = [a + b for a, b in zip(sums[key], grad, strict=True)] if key in sums else grad
        for key, grad in sums.items():
            empty = Row([0.0] * self.definition.dim, _first_state(self.definition), 0)
            row = self.rows.setdefault(key, empty)
            self._step(row, grad)
            row.position = position

    def delete(self, keys: list[int], up_to: int | None) -> None:
        for key in keys:
            if key in self.rows and (up_to is None or self.rows[key].position <= up_to):
                del self.rows[key]

    def _step(self, row: Row, grad: Numbers) -> None:
        optimizer = self.definition.optimizer
        assert optimizer is not None
        rate = optimizer.settings["lr"]
        if optimizer.kind == "sgd":
            row.values = [w - rate * g for w, g in zip(row.values, grad, strict=True)]
            return
        assert optimizer.kind == "adagrad"
        row.state = [s + g * g for s, g in zip(row.state, grad, strict=True)]
        row.values = [
            w - rate * g / (math.sqrt(s) + optimizer.settings["eps"])
            for w, s, g in zip(row.values, row.state, grad, strict=True)
        ]

    def bits(self) -> list[tuple[bytes, ...]]:
        """Key, values, state and position of each row, as `feeding.rows.rows_of` gives them."""
        return sorted(
            (
                np.int64(key).tobytes(),
                np.array(row.values, np.float64).tobytes(),
                np.array(row.state, np.float64).tobytes(),
                np.uint64(row.position).tobytes(),
            )
            for key, row in self.rows.items()
        )


def apply(tables: dict[str, ReferenceTable], record: EventFrame) -> None:
    """What an event makes of the tables of its partition."""
    payload = record.payload
    match payload:
        case Table():
            if payload.table in tables:
                tables[payload.table].alter(payload)
            else:
                tables[payload.table] = ReferenceTable(payload)
        case Rows() | Gradients():
            keys, values = np.frombuffer(record.bulk, np.int64, payload.count), record.bulk[8 * payload.count :]
            rows = np.frombuffer(values, np.float64).reshape(payload.count, payload.dim).tolist()
            table = tables[payload.table]
            change = table.write if isinstance(payload, Rows) else table.learn
            change(keys.tolist(), rows, record.position)
        case DeleteRows():
            tables[payload.table].delete(np.frombuffer(record.bulk, np.int64).tolist(), payload.up_to)
        case _:
            pass


def _kind(definition: Table) -> str:
    return "" if definition.optimizer is None else definition.optimizer.kind


def _first_state(definition: Table) -> Numbers:
    if _kind(definition) != "adagrad":
        return []
    assert definition.optimizer is not None
    return [definition.optimizer.settings["initial_accumulator_value"]] * definition.dim
