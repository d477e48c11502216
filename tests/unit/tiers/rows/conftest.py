"""Every test of this folder that names `kernels`, or makes a table, runs with the compiled kernels and with those of numpy."""

import pytest

from paramstream.tiers.rows.kernels import NumpyKernels


@pytest.fixture(params=["numpy", "numba"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> NumpyKernels:
    """The loops that tables made in the test use."""
    chosen = NumpyKernels()
    if request.param == "numba":
        pytest.importorskip("numba")
        from paramstream.tiers.rows.kernels_numba import NumbaKernels

        chosen = NumbaKernels()
    monkeypatch.setattr("paramstream.tiers.rows.table.chosen_kernels", lambda: chosen)
    return chosen
