"""Values travel, not memory: whatever an array's strides, order or dtype, its logical row-major bytes are what is sent."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
import torch

from paramstream.errors import InvalidEvent
from paramstream.events.arrays import DTYPES, as_numpy, as_torch, describe, nbytes_of, row_major


def travelled(value: Any) -> np.ndarray[Any, Any]:
    dtype, shape = describe("w", value)
    data = row_major("w", value)
    assert len(data) == nbytes_of(dtype, shape)
    return as_numpy(bytes(data), dtype, shape)


def test_a_strided_view_travels_as_its_logical_values_A01() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected = [[0, 2, 4], [6, 8, 10], [12, 14, 16], [18, 20, 22]]
    assert travelled(base[:, ::2]).tolist() == expected
    assert travelled(torch.from_numpy(base)[:, ::2]).tolist() == expected
    assert base.tolist() == np.arange(24).reshape(4, 6).tolist()


def test_memory_order_is_no_part_of_the_contract_A03() -> None:
    column_major = np.asfortranarray(np.array([[11, 12, 13], [21, 22, 23]]))
    assert travelled(column_major).tolist() == [[11, 12, 13], [21, 22, 23]]
    assert travelled(torch.tensor([[11, 21], [12, 22], [13, 23]]).T).tolist() == [[11, 12, 13], [21, 22, 23]]


@pytest.mark.parametrize("shape", [(0,), (0, 16), (4, 0)])
def test_zero_size_arrays_keep_their_shape_A04(shape: tuple[int, ...]) -> None:
    assert travelled(np.zeros(shape, np.float32)).shape == shape
    dtype, found = describe("w", torch.zeros(shape))
    assert as_torch(bytearray(), dtype, found).shape == shape


def test_scalars_keep_their_shape_A06() -> None:
    for value in (np.float32(3.5), np.array(3.5, np.float32), torch.tensor(3.5)):
        assert (travelled(value).shape, travelled(value).item()) == ((), 3.5)


def test_bfloat16_keeps_its_bits_A07() -> None:
    values = torch.tensor([1.0, 3.39e38, 1e-38, -0.0, float("nan"), float("inf")], dtype=torch.bfloat16)
    bits = values.view(torch.uint16).numpy()
    array = travelled(values)
    assert array.dtype == ml_dtypes.bfloat16
    assert array.view(np.uint16).tolist() == bits.tolist()
    back = as_torch(bytearray(row_major("w", array)), "bfloat16", (6,))
    assert back.view(torch.uint16).tolist() == bits.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_makes_the_round_trip(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(DTYPES[dtype])
    assert travelled(array).tobytes() == array.tobytes()
    if hasattr(torch, dtype):
        tensor = as_torch(bytearray(array.tobytes()), dtype, (2, 3))
        assert describe("w", tensor) == (dtype, (2, 3))
        assert bytes(row_major("w", tensor)) == array.tobytes()


def test_byte_order_is_made_native() -> None:
    assert travelled(np.array([1, 2], dtype=">i4")).tolist() == [1, 2]


@pytest.mark.parametrize(
    "value", [np.array(["a"]), np.array([object()]), [1, 2], "w", 3, None, torch.zeros(2).to_sparse()]
)
def test_what_is_no_dense_supported_array_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidEvent) as caught:
        describe("layer.w", value)
    assert caught.value.item == "layer.w"


@pytest.mark.parametrize("mask", [[False, True], [False, False]])
def test_what_lies_under_a_mask_is_not_published(mask: list[bool]) -> None:
    masked = cast("Any", np.ma).array([1.0, 2.0], mask=mask)
    for value in (masked, masked[:1], np.ma.masked):
        for read in (describe, row_major):
            with pytest.raises(InvalidEvent, match=r"'layer\.w'\)\. Call filled\(value\) first"):
                read("layer.w", value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of")
def test_a_tensor_that_is_more_than_its_values_is_refused_by_name() -> None:
    masked = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for value in (masked, nested, torch.nn.UninitializedParameter()):
        with pytest.raises(InvalidEvent) as caught:
            describe("layer.w", value)
        assert caught.value.item == "layer.w"


def test_an_impossible_shape_is_refused() -> None:
    with pytest.raises(InvalidEvent):
        nbytes_of("float32", (2, -1))


def test_an_array_is_described_while_another_thread_is_importing_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert describe("w", np.zeros(3, np.float32)) == ("float32", (3,))
