"""The reference for weights: a plain mapping of arrays, its digest, and whether a replica serves just that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

import paramstream as ps
from paramstream.events.digest import tensor_digest, version_digest
from paramstream.events.kinds import TensorSpec


def of_numpy(array: npt.NDArray[Any]) -> Any:
    return array


def of_torch(array: npt.NDArray[Any]) -> Any:
    """A tensor over the same memory."""
    import torch

    return torch.from_numpy(array)


def logical_bytes(array: Any) -> bytes:
    """The row-major values of a numpy array or torch tensor, by no code of the library."""
    if isinstance(array, np.ndarray | np.generic):
        values = cast(npt.NDArray[Any], array)
        return values.tobytes(order="C")
    import torch

    assert isinstance(array, torch.Tensor)
    flat = array.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def dtype_of(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def digest_of(arrays: Mapping[str, Any]) -> str:
    """The digest of a version that holds just these arrays."""
    specs: list[TensorSpec] = []
    for name, array in arrays.items():
        data = logical_bytes(array)
        specs.append(TensorSpec(name, dtype_of(array), tuple(array.shape), tensor_digest(data), len(data)))
    return version_digest(specs).hex()


def check_weights(held: ps.Weights, arrays: Mapping[str, Any], version: int) -> None:
    """`held` is version `version` of just these names, shapes, dtypes and bytes, and says their digest."""
    assert held.version == version
    assert set(held) == set(arrays)
    for name, array in arrays.items():
        got = held[name]
        assert (dtype_of(got), tuple(got.shape)) == (dtype_of(array), tuple(array.shape)), name
        assert logical_bytes(got) == logical_bytes(array), name
    assert held.digest == digest_of(arrays)
