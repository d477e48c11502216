"""Which kernels a process uses, and that compiling them needs no folder, no disk and no turn."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from paramstream.tiers.rows.kernels import NumpyKernels, kernels

COMPILE_TIMEOUT_SECONDS = 100


@pytest.fixture(autouse=True)
def chosen_anew() -> Iterator[None]:
    """What a process uses is chosen once."""
    kernels.cache_clear()
    yield
    kernels.cache_clear()


def test_the_environment_may_do_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAMSTREAM_NUMBA", "0")
    assert type(kernels()) is NumpyKernels


def test_without_numba_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert type(kernels()) is NumpyKernels


def test_with_numba_the_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.delenv("PARAMSTREAM_NUMBA", raising=False)
    assert type(kernels()) is not NumpyKernels


def add_one(number: int) -> int:
    return number + 1


def test_a_kernel_is_compiled_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    from paramstream.tiers.rows.intrinsics import kernel

    # What numba looks for a folder with finds none.
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    assert kernel(add_one, numba.int64, numba.int64)(3) == 4


def test_a_kernel_is_compiled_where_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    from paramstream.tiers.rows.intrinsics import kernel

    def save(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", save)
    assert kernel(add_one, numba.int64, numba.int64)(3) == 4


PROGRAM = """
import hashlib
import numpy as np
from paramstream.tiers.budget import Budget
from paramstream.tiers.rows import OptimizerSpec, RowSpec, RowTable
adam = OptimizerSpec("adam", {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8})
table = RowTable("emb", RowSpec(7, "float32", adam), Budget(1 << 22))
keys = np.arange(50) % 30
table.apply(keys, np.arange(350, dtype=np.float32).reshape(50, 7), 1, images=False)
print(hashlib.sha256(table.lookup(keys)[0].tobytes()).hexdigest(), type(table._kernels).__name__)
"""


@pytest.mark.slow
def test_processes_that_compile_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PARAMSTREAM_NUMBA": "1"}

    def run(**more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", "-c", PROGRAM]
        return subprocess.Popen(command, env={**environment, **more}, stdout=subprocess.PIPE, text=True)

    def answers(running: list[subprocess.Popen[str]]) -> list[list[str]]:
        try:
            return [process.communicate(timeout=COMPILE_TIMEOUT_SECONDS)[0].split() for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait()

    # Four compile at once, then one finds it done, then one does without.
    told = answers([run() for _ in range(4)]) + answers([run()]) + answers([run(PARAMSTREAM_NUMBA="0")])
    assert {digest for digest, _ in told} == {told[0][0]}
    assert [name for _, name in told] == ["NumbaKernels"] * 5 + ["NumpyKernels"]
    assert any(tmp_path.rglob("*.nbc"))


def test_folding_finds_what_repeats() -> None:
    random = np.random.default_rng(2)
    slots = random.integers(0, 300, 1000) << 33
    for each in {type(kernels()), NumpyKernels}:
        folded = each().fold(slots)
        assert np.array_equal(folded.slots[folded.owner], slots)
        assert len(set(folded.slots.tolist())) == len(folded.slots)
        assert (np.diff(folded.first) > 0).all()
        for number, slot in enumerate(folded.slots.tolist()):
            places = np.flatnonzero(slots == slot)
            assert (folded.first[number], folded.last[number]) == (places[0], places[-1])
