"""What a parameter server must come to, in plain numpy, and the events that it is given. It shares no code with the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import paramstream as ps
from paramstream.consistency.vector import VersionVector
from paramstream.consumers.events import Event, event_of
from paramstream.events.codec import Head, decode_event, encode_event
from paramstream.producers.dense_gradients import dense_gradient_drafts
from paramstream.transport.calls import TopicRecord

Floats = npt.NDArray[Any]
Tensors = dict[str, Floats]
Adam = tuple[Floats, Floats, int]

SOURCE = TopicRecord("grads", 5, 1, "write_back", 8)


def events_of(gradients: Mapping[str, Any], step: int, producer: str, incarnation: int = 1) -> list[Event]:
    """As a processor sees one call of `publish_dense_gradients`; positions are left out."""
    found: list[Event] = []
    for number, draft in enumerate(dense_gradient_drafts(SOURCE, gradients, step, "pass"), 1):
        head = Head(producer, incarnation, number)
        frame = decode_event(encode_event(draft.partition, head, draft.payload, draft.bulk))
        event = event_of(frame, frame.stamp(), SOURCE.name, lambda _: VersionVector())
        assert event is not None
        found.append(event)
    return found


def summed(contributions: Sequence[tuple[str, Tensors]], *, mean: bool = True) -> Tensors:
    """One after the other by the names of their producers, in float32."""
    total: Tensors = {}
    for _, gradients in sorted(contributions, key=lambda each: each[0]):
        for name, gradient in gradients.items():
            total[name] = total[name] + gradient if name in total else gradient.copy()
    return {name: value / np.float32(len(contributions)) if mean else value for name, value in total.items()}


class Model:
    """float32 weights, and the moments of an optimizer."""

    def __init__(self, weights: Tensors, optimizer: ps.SGD | ps.Adagrad | ps.Adam) -> None:
        self.weights = {name: value.copy() for name, value in weights.items()}
        self._optimizer = optimizer
        self._sums: Tensors = {}
        self._moments: dict[str, Adam] = {}

    def apply(self, gradients: Tensors) -> None:
        for name, gradient in gradients.items():
            self.weights[name] = self._moved(name, self.weights[name], gradient)

    def _moved(self, name: str, weight: Floats, gradient: Floats) -> Floats:
        number, optimizer = np.float32, self._optimizer
        match optimizer:
            case ps.SGD():
                return weight - number(optimizer.lr) * gradient
            case ps.Adagrad():
                before = self._sums.get(name, np.full_like(weight, optimizer.initial_accumulator_value))
                self._sums[name] = before + gradient * gradient
                return weight - number(optimizer.lr) * gradient / (np.sqrt(self._sums[name]) + number(optimizer.eps))
            case ps.Adam():
                first, second, count = self._moments.get(name, (np.zeros_like(weight), np.zeros_like(weight), 0))
                first = first + number(1 - optimizer.beta1) * (gradient - first)
                second = second * number(optimizer.beta2) + number(1 - optimizer.beta2) * gradient * gradient
                self._moments[name] = first, second, count + 1
                rate = number(optimizer.lr / (1 - _power(optimizer.beta1, count + 1)))
                scale = number(1 / np.sqrt(1 - _power(optimizer.beta2, count + 1)))
                moved: Floats = weight - rate * first / (np.sqrt(second) * scale + number(optimizer.eps))
                return moved


def _power(base: float, exponent: int) -> float:
    """By squaring from the lowest bit up, as the definition says."""
    result, square = 1.0, base
    while exponent:
        result = result * square if exponent & 1 else result
        square, exponent = square * square, exponent >> 1
    return result
