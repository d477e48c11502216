"""Arrays in and out: values travel, not memory.

A tensor is named by its dtype, its shape and its logical row-major bytes, whatever strides or order it had. numpy has no
bfloat16 or float8 of its own; `ml_dtypes` gives them. torch is never imported here unless the caller's arrays are torch's
or `arrays="torch"` asks for it.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..errors import InvalidEvent
from .limits import MAX_RANK, MAX_TENSOR_BYTES

if TYPE_CHECKING:
    import torch

ArrayKind = Literal["numpy", "torch"]
Array = Any
"""A numpy array or a torch tensor."""

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(np, name if name != "bool" else "bool_"))
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64", "complex64", "complex128",
    )
} | {name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")}  # fmt: skip
"""The dtypes that travel, by the name that both numpy (with `ml_dtypes`) and torch give them."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def default_arrays() -> ArrayKind:
    """What arrays come back as unless asked: torch where torch can be imported, numpy otherwise."""
    return "torch" if "torch" in sys.modules or importlib.util.find_spec("torch") else "numpy"


def is_torch(value: object) -> bool:
    # Another thread may be in the middle of importing torch: before it has tensors, nobody has one.
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def nbytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """The bytes of the row-major values. Raises `InvalidEvent` for an unknown dtype or an impossible shape."""
    if dtype not in DTYPES:
        raise InvalidEvent(f"the dtype {dtype!r} is not supported", remedy=f"Use one of {', '.join(DTYPES)}")
    if len(shape) > MAX_RANK or any(n < 0 for n in shape):
        raise InvalidEvent(f"the shape {shape} is not possible: at most {MAX_RANK} dimensions, none negative")
    nbytes = counted = DTYPES[dtype].itemsize
    for n in shape:
        nbytes *= n
        counted *= n or 1  # numpy counts so too: no view has more, even of nothing.
    if counted > MAX_TENSOR_BYTES:
        raise InvalidEvent(f"the shape {shape} of {dtype} is over the limit of {MAX_TENSOR_BYTES} bytes")
    return nbytes


def describe(name: str, value: object) -> tuple[str, tuple[int, ...]]:
    """(dtype, shape) of an array. Raises `InvalidEvent` naming the tensor for what is no dense, supported array."""
    dtype, shape = _describe_torch(name, value) if is_torch(value) else _describe_numpy(name, value)
    if len(shape) > MAX_RANK:
        raise InvalidEvent(f"a tensor of {len(shape)} dimensions; there may be {MAX_RANK}", item=name)
    return dtype, shape


def row_major(name: str, value: object) -> memoryview:
    """The logical row-major bytes of an array, as a flat view: of the array's own memory where that is row-major already,
    else of a copy. Torch tensors of a device are copied to the host.
    """
    if is_torch(value):
        value = _torch_as_numpy(value)
    array = _as_numpy(name, value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def as_numpy(buffer: Any, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """An array of the bytes in `buffer`, which it keeps alive; read-only where the buffer is. Does not copy."""
    return np.frombuffer(buffer, dtype=DTYPES[dtype], count=_count(shape)).reshape(shape)


def as_torch(buffer: Any, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor over the bytes in `buffer` (writable), which it keeps alive. Does not copy."""
    import torch

    count = _count(shape)
    torch_dtype = torch_dtypes()[dtype]
    if count == 0:
        return torch.empty(shape, dtype=torch_dtype)
    return torch.frombuffer(buffer, dtype=torch_dtype, count=count).reshape(shape)


@cache
def torch_dtypes() -> dict[str, torch.dtype]:
    """Our dtype names → torch's; names that this torch lacks are left out."""
    import torch

    return {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def _as_numpy(name: str, value: object) -> npt.NDArray[Any]:
    if not isinstance(value, np.ndarray | np.generic):
        raise InvalidEvent(
            f"a tensor must be a numpy array or a torch tensor, not {type(value).__name__}",
            item=name,
            remedy="Convert it, for example with numpy.asarray",
        )
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidEvent(
            "a masked array cannot be published: a mask does not travel", item=name, remedy="Call filled(value) first"
        )
    array: npt.NDArray[Any] = np.asarray(cast("Any", value))
    return array


def _describe_numpy(name: str, value: object) -> tuple[str, tuple[int, ...]]:
    array = _as_numpy(name, value)
    found = _NAMES.get(array.dtype.newbyteorder("="))
    if found is None:
        raise InvalidEvent(
            f"the dtype {array.dtype} is not supported", item=name, remedy=f"Use one of {', '.join(DTYPES)}"
        )
    return found, array.shape


def _describe_torch(name: str, value: Any) -> tuple[str, tuple[int, ...]]:
    import torch

    if hasattr(value, "full_tensor"):
        raise InvalidEvent(
            "a sharded tensor cannot be published: publishing never starts a collective",
            item=name,
            remedy="Gather it on every rank first: value.full_tensor(), then publish from one rank",
        )
    if isinstance(value, torch.masked.MaskedTensor):
        raise InvalidEvent(
            "a masked tensor cannot be published: a mask does not travel",
            item=name,
            remedy="Call to_tensor(value) first",
        )
    if value.is_nested:
        raise InvalidEvent("a nested tensor is not dense", item=name, remedy="Publish what it holds, one tensor a name")
    if torch.nn.parameter.is_lazy(value):
        raise InvalidEvent("a lazy parameter has no shape yet", item=name, remedy="Call the module once first")
    if value.layout is not torch.strided:
        raise InvalidEvent(f"a tensor of layout {value.layout} is not dense", item=name, remedy="Call to_dense()")
    if value.is_quantized:
        raise InvalidEvent(
            "a quantized tensor cannot be published", item=name, remedy="Call dequantize() or int_repr()"
        )
    if value.is_meta:
        raise InvalidEvent("a tensor on the meta device has no values", item=name, remedy="Materialize it first")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise InvalidEvent(
            f"the dtype {value.dtype} is not supported", item=name, remedy=f"Use one of {', '.join(DTYPES)}"
        )
    return dtype, tuple(value.shape)


def _torch_as_numpy(value: Any) -> npt.NDArray[Any]:
    """numpy's view of a torch tensor; dtypes that numpy lacks pass as integers of the same width."""
    import torch

    dtype = str(value.dtype).removeprefix("torch.")
    plain = value.detach().resolve_conj().resolve_neg().cpu()
    if dtype == "bfloat16":
        plain = plain.contiguous().view(torch.int16)
    if dtype.startswith("float8"):
        plain = plain.contiguous().view(torch.uint8)
    return cast("npt.NDArray[Any]", plain.numpy())
