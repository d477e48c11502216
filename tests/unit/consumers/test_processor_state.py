"""A state comes back from its bytes as it was, and what would not is refused by its key."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import paramstream as ps
from paramstream.consumers.processors.state import decode_state, encode_state


def again(state: dict[Any, Any]) -> dict[Any, Any]:
    encoded = encode_state(state)
    return decode_state(encoded.tree, memoryview(b"".join(encoded.bulk)))


def test_plain_data_comes_back_with_its_types() -> None:
    state: dict[Any, Any] = {
        "none": None,
        "flags": [True, False],
        b"bytes key": b"bytes",
        7: -(1 << 63),
        "most": (1 << 64) - 1,
        "float": 0.1,
        "text": "ü",
        "tuple": (1, ("a", [2, (3,)])),
        "buffer": bytearray(b"mutable"),
        "nested": {"b": 1, "a": {"deep": {}}},
    }
    found = again(state)
    assert found == state
    assert list(found["nested"]) == ["b", "a"]
    assert type(found["tuple"][1][1]) is list and type(found["tuple"][1][1][1]) is tuple
    assert type(found["buffer"]) is bytearray and type(found["flags"][0]) is bool


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.complex128, ml_dtypes.bfloat16])
def test_arrays_and_scalars_come_back_bit_for_bit(dtype: Any) -> None:
    rows = np.arange(6).reshape(2, 3).astype(dtype)
    found = again({"rows": rows, "columns": np.asfortranarray(rows), "none": rows[:0].copy(), "one": rows[1, 2]})
    for name, expected in (("rows", rows), ("columns", rows), ("none", rows[:0])):
        assert found[name].dtype == rows.dtype and found[name].shape == expected.shape
        assert found[name].tobytes() == expected.tobytes()
    assert found["rows"].flags.c_contiguous and found["rows"].flags.writeable
    assert found["columns"].flags.f_contiguous and not found["columns"].flags.c_contiguous
    assert type(found["one"]) is type(rows[1, 2]) and found["one"] == rows[1, 2]


def test_an_array_that_nobody_could_write_to_stays_so() -> None:
    frame = np.arange(3).tobytes()
    views = {"a": np.frombuffer(frame, np.int64), "b": np.frombuffer(frame, np.int64)[:2]}
    assert not any(array.flags.writeable for array in again(views).values())


def test_later_changes_of_the_state_are_not_in_what_was_copied() -> None:
    state: dict[Any, Any] = {"array": np.zeros(2), "list": [1]}
    encoded = encode_state(state)
    state["array"] += 1
    state["list"].append(2)
    found = decode_state(encoded.tree, memoryview(b"".join(encoded.bulk)))
    assert found["array"].tolist() == [0, 0] and found["list"] == [1]


shared = np.zeros(4)
endless: list[Any] = []
endless.append(endless)
deep: tuple[Any, ...] = ()
for _ in range(100):
    deep = (deep,)


@pytest.mark.parametrize(
    ("state", "item", "problem"),
    [
        ({"a": {"b": [1, {2}]}}, "state['a']['b'][1]", "set"),
        ({"a": object()}, "state['a']", "object"),
        ({"a": 1 << 64}, "state['a']", "64 bits"),
        ({"a": "\ud800"}, "state['a']", "UTF-8"),
        ({"a": {1.5: 0}}, "state['a']", "1.5"),
        ({"a": torch.zeros(1)}, "state['a']", "torch"),
        ({"a": np.array([object()])}, "state['a']", "dtype object"),
        ({"a": np.arange(8)[::2]}, "state['a']", "strided"),
        ({"a": np.arange(2, dtype=">i8")}, "state['a']", "byte order"),
        ({"a": np.ma.masked_array([1], [True])}, "state['a']", "masked array"),
        ({"a": shared, "b": [shared[1:3]]}, "state['b'][0]", "that of state['a']"),
        ({"a": endless}, "state['a'][0]", "same object"),
        ({"a": deep}, "", "deeper"),
    ],
)
def test_what_would_not_come_back_as_it_is_is_refused_by_its_key(
    state: dict[Any, Any], item: str, problem: str
) -> None:
    with pytest.raises(ps.InvalidEvent, match=re.escape(problem)) as refused:
        encode_state(state)
    assert (refused.value.item or "").startswith(item)


def test_damaged_bytes_are_no_state() -> None:
    encoded = encode_state({"a": np.arange(10)})
    bulk = b"".join(encoded.bulk)
    with pytest.raises(ps.CorruptLog):
        decode_state(encoded.tree, memoryview(bulk)[:-1])
    with pytest.raises(ps.CorruptLog):
        decode_state(encoded.tree[:-1], memoryview(bulk))
    with pytest.raises(ps.CorruptLog):
        decode_state(b"\x01", memoryview(b""))
