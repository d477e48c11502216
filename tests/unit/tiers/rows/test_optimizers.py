"""The optimizers of rows: against torch's within float tolerance, against their definition, and the same bits in every kind of kernel."""

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from paramstream.tiers.budget import Budget
from paramstream.tiers.rows import InitSpec, OptimizerSpec, RowSpec, RowTable
from paramstream.tiers.rows.kernels import NumpyKernels
from paramstream.tiers.rows.optimizers import power, sum_of_squares

OPTIMIZERS = {
    "sgd": OptimizerSpec("sgd", {"lr": 0.1}),
    "adagrad": OptimizerSpec("adagrad", {"lr": 0.1, "eps": 1e-10, "initial_accumulator_value": 0.1}),
    "rowwise_adagrad": OptimizerSpec("rowwise_adagrad", {"lr": 0.1, "eps": 1e-8, "initial_accumulator_value": 0.1}),
    "adam": OptimizerSpec("adam", {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}),
}
KEYS = np.array([3, -1, 2**63 - 1, 0, 12, -(2**63)], np.int64)
PINNED = {
    "adagrad": "0b5e6215298e76d6",
    "adam": "8554e10af0917dc0",
    "rowwise_adagrad": "2860a5f434e16ed8",
    "sgd": "cec1ca0f4f7e0752",
}
DTYPES = ["float32", "float64", "float16", "bfloat16"]


def table_of(kind: str, dtype: str = "float32", dim: int = 19, kernels: NumpyKernels | None = None) -> RowTable:
    spec = RowSpec(dim, dtype, OPTIMIZERS[kind], InitSpec("normal", {"std": 1.0}, 5))
    return RowTable("emb", spec, Budget(1 << 24), kernels)


def gradients(step: int, dtype: str, dim: int = 19) -> NDArray[Any]:
    numbers = ((np.arange(len(KEYS) * dim) * 7919 + step * 104729) % 2003 - 1001) / 512
    return numbers.reshape(-1, dim).astype(RowSpec(dim, dtype).value_dtype)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_rows_follow_the_optimizer_of_torch(kind: str, dtype: str) -> None:
    table = table_of(kind, dtype)
    weight = torch.nn.Parameter(torch.from_numpy(table.lookup(KEYS)[0].copy()))
    settings: dict[str, Any] = dict(OPTIMIZERS[kind].settings)
    if kind == "adam":
        settings["betas"] = settings.pop("beta1"), settings.pop("beta2")
    reference = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[kind](
        [weight], **settings
    )
    for step in range(1, 30):
        table.apply(KEYS, gradients(step, dtype), step, images=False)
        weight.grad = torch.from_numpy(gradients(step, dtype))
        reference.step()
    tolerance = 2e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(table.lookup(KEYS)[0], weight.detach().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("kernels")
def test_a_row_of_rowwise_adagrad_has_one_sum_of_mean_squares() -> None:
    table = table_of("rowwise_adagrad")
    values, squares = table.lookup(KEYS)[0].astype(np.float64), np.full(len(KEYS), 0.1)
    for step in range(1, 30):
        given = gradients(step, "float32").astype(np.float64)
        table.apply(KEYS, given.astype(np.float32), step, images=False)
        squares += (given**2).mean(axis=1)
        values -= (0.1 / (np.sqrt(squares) + 1e-8))[:, None] * given
    batch = table.read(KEYS)
    np.testing.assert_allclose(batch.values, values, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(batch.state[:, 0], squares, rtol=1e-5)


@pytest.mark.usefixtures("kernels")
def test_adam_counts_the_steps_of_each_row_by_itself() -> None:
    table, alone = table_of("adam"), table_of("adam")
    for step in range(1, 12):
        table.apply(KEYS[:1] if step % 4 else KEYS[:2], gradients(step, "float32")[: 1 if step % 4 else 2], step, False)
        if step % 4 == 0:
            alone.apply(KEYS[1:2], gradients(step, "float32")[1:2], step, images=False)
    state = table.read(KEYS[:2]).state
    assert state[:, -1].tolist() == [11, 2]
    assert table.lookup(KEYS[1:2])[0].tobytes() == alone.lookup(KEYS[1:2])[0].tobytes()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_narrow_rows_are_computed_in_float32_and_rounded_once_a_step(kind: str) -> None:
    table, exact = table_of(kind, "bfloat16"), table_of(kind, "float32")
    start, given = gradients(1, "bfloat16"), gradients(2, "bfloat16")
    table.write(KEYS, start, 1, images=False)
    exact.write(KEYS, start.astype(np.float32), 1, images=False)
    table.apply(KEYS, given, 2, images=False)
    exact.apply(KEYS, given.astype(np.float32), 2, images=False)
    assert table.lookup(KEYS)[0].tobytes() == exact.lookup(KEYS)[0].astype(start.dtype).tobytes()
    assert table.read(KEYS).state.tobytes() == exact.read(KEYS).state.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_compiled_kernels_and_numpy_give_the_same_bits(kind: str, dtype: str) -> None:
    tables = [table_of(kind, dtype, kernels=each) for each in both_kernels()]
    random = np.random.default_rng(3)
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-42, -1e-38, 3e38, 1.0])
    for step in range(1, 12):
        keys = random.integers(0, 40, 64)
        given = random.normal(size=(64, 19)) * 10.0 ** random.integers(-30, 30, (64, 1))
        if step > 6:
            given[random.random(given.shape) < 0.02] = random.choice(odd)
        with np.errstate(all="ignore"):
            narrow = given.astype(tables[0].spec.value_dtype)
        images = [table.apply(keys, narrow, step, images=True) for table in tables]
        assert _bits(images[0]) == _bits(images[1])
        every = np.arange(40)
        assert _bits(tables[0].read(every)) == _bits(tables[1].read(every))


def both_kernels() -> list[NumpyKernels]:
    pytest.importorskip("numba")
    from paramstream.tiers.rows.kernels_numba import NumbaKernels

    return [NumpyKernels(), NumbaKernels()]


def _bits(batch: Any) -> tuple[bytes, ...]:
    return tuple(each.tobytes() for each in (batch.keys, batch.values, batch.state, batch.positions))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_the_bits_are_these_on_every_machine(kind: str) -> None:
    table = table_of(kind)
    for step in range(1, 20):
        table.apply(KEYS, gradients(step, "float32"), step, images=False)
    batch = table.read(KEYS)
    assert hashlib.sha256(batch.values.tobytes() + batch.state.tobytes()).hexdigest()[:16] == PINNED[kind]


def test_gradients_of_a_key_that_repeats_are_summed_in_the_order_given() -> None:
    big, small = np.float32(2**24), np.float32(1)
    for kernels in both_kernels():
        table = RowTable("emb", RowSpec(1, "float32", OptimizerSpec("sgd", {"lr": 1.0})), Budget(1 << 22), kernels)
        # Each small one is lost beside the big one, but not both together.
        table.apply(
            np.array([1, 2, 1, 2, 1, 2]), np.array([[big], [small], [small], [small], [small], [big]]), 1, False
        )
        assert table.lookup(np.array([1, 2]))[0].tolist() == [[-(2.0**24)], [-(2.0**24 + 2)]]


def test_the_sum_of_a_row_goes_by_sixteen_lanes() -> None:
    rows = np.random.default_rng(1).normal(size=(5, 37)).astype(np.float32)
    for row, total in zip(rows, sum_of_squares(rows), strict=True):
        lanes = [np.float32(0)] * 16
        for column, value in enumerate(row):
            lanes[column % 16] = lanes[column % 16] + value * value
        for width in (8, 4, 2, 1):
            lanes = [lanes[lane] + lanes[lane + width] for lane in range(width)]
        assert total == lanes[0]


def test_a_power_is_what_it_should_be_to_the_last_bits() -> None:
    exponents = np.array([0, 1, 2, 3, 10, 1000, 1 << 24])
    for base in (0.0, 0.5, 0.9, 0.999, 1.0):
        np.testing.assert_allclose(power(base, exponents), np.power(base, exponents.astype(float)), rtol=1e-13, atol=0)


@pytest.mark.usefixtures("kernels")
def test_no_gradient_that_is_none_changes_what_a_nan_looks_like() -> None:
    table = table_of("adam", dim=2)
    table.apply(KEYS[:1], np.array([[np.nan, -np.nan]], np.float32), 1, images=False)
    batch = table.read(KEYS[:1])
    quiet = np.array([np.nan], np.float32).tobytes()
    assert batch.values.tobytes() == quiet * 2
    assert batch.state[:, :4].tobytes() == quiet * 4
