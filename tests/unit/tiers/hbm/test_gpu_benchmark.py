"""The script for a machine with a GPU, on the CPU: the same code, checked bit for bit."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

gpu: Any = importlib.import_module("paramstream.benchmarks.gpu")


def test_the_script_checks_bits_and_times_swaps_on_whatever_device_there_is() -> None:
    found = gpu.run(quick=True)
    assert found["rows_equal_bit_for_bit"] > 20_000
    assert found["rows_evicted"] > 0
    assert all(found[figure] > 0 for figure in found if figure.endswith("_s"))
    if not torch.cuda.is_available():
        assert (found["device"], found["far_rows_equal"]) == ("cpu", 0)


def test_the_script_does_not_pass_over_one_bit_that_differs() -> None:
    rows = np.zeros((2, 4), np.float32)
    rows[1, 3] = -0.0
    with pytest.raises(AssertionError, match="other bits"):
        gpu._compare(torch.zeros(2, 4), rows)
