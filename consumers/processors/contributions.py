"""Dense gradients put together from their events: one producer's gradients of a step are whole, or they do not count.

The events of one call come in order and without another between (`DenseGradients`). A producer that dies in the middle leaves the
first ones; what it sends once it is back begins anew. All that is kept is plain data, for a processor's state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...events.arrays import row_major
from ...events.digest import tensor_digest
from ..events import Event, GradientSlice

Coming = dict[str, dict[str, Any]]
"""Producer → the contribution that it is in the middle of, as far as it has come."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one producer gives to a step."""

    producer: str
    step: int
    gradients: dict[str, npt.NDArray[Any]]
    """In their shapes, copied out of the events; nothing where they were not wanted."""


def receive(coming: Coming, event: Event, *, wanted: bool) -> tuple[Contribution | None, bool]:
    """Takes in a "dense_gradients" event: (the contribution that it completes, whether an unfinished one ended).

    `wanted`: whether the values are of any use, asked with the first event. What does not go with what came before is dropped.
    """
    assert event.version is not None
    torn, record = False, coming.get(event.producer)
    if event.number == 0:
        torn = record is not None
        record = coming[event.producer] = {
            "step": event.version, "incarnation": event.incarnation, "count": event.count, "next": 0, "wanted": wanted, "tensors": {},
        }  # fmt: skip
    if record is None:
        return None, False
    if not _follows(record, event) or (
        record["wanted"] and not all(_add(record["tensors"], each) for each in event.slices)
    ):
        del coming[event.producer]
        return None, True
    record["next"] += 1
    if record["next"] < record["count"]:
        return None, torn
    del coming[event.producer]
    gradients = _joined(record["tensors"])
    return (None, True) if gradients is None else (Contribution(event.producer, event.version, gradients), torn)


def _follows(record: dict[str, Any], event: Event) -> bool:
    found = event.version, event.incarnation, event.count, event.number
    return found == (record["step"], record["incarnation"], record["count"], record["next"])


def _add(tensors: dict[str, Any], piece: GradientSlice) -> bool:
    """Whether the slice is the tensor's next one. Nothing is made of a size that is only claimed."""
    tensor = tensors.setdefault(
        piece.name, {"dtype": piece.dtype, "shape": tuple(piece.shape), "digest": piece.digest, "size": 0, "values": []}
    )
    if (tensor["shape"], tensor["digest"], tensor["size"]) != (tuple(piece.shape), piece.digest, piece.offset):
        return False
    if tensor["dtype"] != piece.dtype:
        return False
    tensor["values"].append(piece.values.copy())
    tensor["size"] += piece.values.size
    return True


def _joined(tensors: dict[str, Any]) -> dict[str, npt.NDArray[Any]] | None:
    """None where a tensor is not what its digest says."""
    found: dict[str, npt.NDArray[Any]] = {}
    for name, tensor in tensors.items():
        pieces: list[npt.NDArray[Any]] = tensor["values"]
        flat = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        if flat.size != int(np.prod(tensor["shape"], dtype=object)):
            return None
        if tensor_digest(row_major(name, flat)).hex() != tensor["digest"]:
            return None
        found[name] = flat.reshape(tensor["shape"])
    return found
