"""Which dtypes hold every value of which: said by rule, and held against numpy's own conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from paramstream.consumers.casting import keeps_values, may_cast
from paramstream.events.arrays import DTYPES

SMALL = [name for name, dtype in DTYPES.items() if dtype.itemsize <= 2]
"""Those whose values can all be tried."""


def all_values(name: str) -> npt.NDArray[Any]:
    """Every value of a dtype of at most two bytes, NaN left out."""
    if name == "bool":
        return np.array([False, True])
    bits = np.arange(1 << 8 * DTYPES[name].itemsize, dtype=f"u{DTYPES[name].itemsize}")
    values = bits.view(DTYPES[name])
    return values[~np.isnan(values.astype(np.float64))]


@pytest.mark.parametrize("target", [name for name in DTYPES if name != "bool"])
@pytest.mark.parametrize("source", SMALL)
@pytest.mark.filterwarnings("ignore:.*(overflow|invalid value|imaginary).*")
def test_what_is_called_exact_brings_every_value_back(source: str, target: str) -> None:
    if keeps_values(source, target):
        values = all_values(source)
        back = values.astype(DTYPES[target]).astype(DTYPES[source])
        assert np.array_equal(back, values)


@pytest.mark.parametrize(
    ("source", "target", "exact"),
    [
        ("int32", "float32", False),
        ("int32", "float64", True),
        ("int64", "float64", False),
        ("int16", "float32", True),
        ("int8", "float16", True),
        ("int8", "bfloat16", True),
        ("uint16", "float16", False),
        ("uint8", "int8", False),
        ("uint8", "int16", True),
        ("float32", "int64", False),
        ("float32", "bfloat16", False),
        ("bfloat16", "float32", True),
        ("bfloat16", "float16", False),
        ("float16", "bfloat16", False),
        ("float8_e5m2", "float16", True),
        ("float8_e4m3fn", "bfloat16", True),
        ("float8_e4m3fn", "float8_e5m2", False),
        ("float32", "complex64", True),
        ("float64", "complex64", False),
        ("complex64", "float64", False),
        ("complex64", "complex128", True),
        ("bool", "uint8", True),
        ("uint8", "bool", False),
        ("float32", "quint8", False),
    ],
)
def test_pairs_of_dtypes_are_told_apart(source: str, target: str, exact: bool) -> None:
    assert keeps_values(source, target) == exact
    assert may_cast(source, target, "exact") == exact
    assert may_cast(source, target, "lossy")
    assert not may_cast(source, target, "none")
    assert may_cast(source, source, "none")
