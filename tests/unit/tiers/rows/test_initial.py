"""First values of rows: their distribution, and that the same bits come out everywhere."""

import hashlib
import math
import statistics

import numpy as np
import pytest

from paramstream.tiers.rows import InitSpec, RowSpec
from paramstream.tiers.rows.initial import mixed_seed
from paramstream.tiers.rows.kernels import NumpyKernels

KEYS = np.arange(-4000, 4000, dtype=np.int64) * 7919
NORMAL = InitSpec("normal", {"std": 2.0}, seed=7)
UNIFORM = InitSpec("uniform", {"lo": -1.0, "hi": 3.0}, seed=7)

PINNED_FIRST = [
    "0x1.a57bce0000000p+1",
    "0x1.5abf500000000p-5",
    "-0x1.9e7d5e0000000p-1",
    "-0x1.d296320000000p-2",
    "0x1.de395e0000000p+1",
]
PINNED_DIGEST = "85e93bccfb2c37dee1abec27a479febbc35cf3ea78db45be48859a7eb7c1d269"


def rows_of(
    kernels: NumpyKernels, init: InitSpec, dtype: str = "float64", dim: int = 32, keys: np.ndarray = KEYS
) -> np.ndarray:
    return kernels.initial_rows(RowSpec(dim, dtype, None, init), keys)


def test_a_normal_start_has_mean_variance_and_tails_of_the_normal_distribution(kernels: NumpyKernels) -> None:
    values = rows_of(kernels, NORMAL).ravel() / 2.0
    count = values.size
    assert abs(values.mean()) < 5 / math.sqrt(count)
    assert abs(values.var() - 1) < 5 * math.sqrt(2 / count)
    assert abs((values**3).mean()) < 5 * math.sqrt(15 / count)
    assert abs((values**4).mean() - 3) < 5 * math.sqrt(96 / count)
    for edge in (0.5, 1.0, 2.0, 3.0, 4.0):
        share = math.erfc(edge / math.sqrt(2))
        outside = np.count_nonzero(np.abs(values) > edge)
        assert abs(outside - share * count) < 5 * math.sqrt(share * count) + 1


def test_a_uniform_start_fills_its_range_evenly(kernels: NumpyKernels) -> None:
    values = rows_of(kernels, UNIFORM).ravel()
    assert -1 <= values.min() < -0.999
    assert 2.999 < values.max() <= 3
    counts, _ = np.histogram(values, bins=64, range=(-1, 3))
    expected = values.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * math.sqrt(2 * 63)


def test_columns_and_neighbouring_keys_have_nothing_to_do_with_each_other(kernels: NumpyKernels) -> None:
    values = rows_of(kernels, NORMAL, dim=16, keys=np.arange(20_000))
    correlations = np.corrcoef(np.concatenate((values[:-1], values[1:]), axis=1).T) - np.eye(32)
    assert np.abs(correlations).max() < 6 / math.sqrt(20_000)


def test_a_row_starts_the_same_whatever_is_asked_beside_it(kernels: NumpyKernels) -> None:
    together = rows_of(kernels, NORMAL)
    alone = np.concatenate([rows_of(kernels, NORMAL, keys=KEYS[i : i + 1]) for i in range(0, len(KEYS), 997)])
    assert together[::997].tobytes() == alone.tobytes()
    # The first columns of a wider table start alike too.
    assert rows_of(kernels, NORMAL, dim=8).tobytes() == np.ascontiguousarray(together[:, :8]).tobytes()


def test_another_seed_gives_other_rows_and_a_seed_counts_modulo_2_to_the_64(kernels: NumpyKernels) -> None:
    other = InitSpec("normal", {"std": 2.0}, seed=8)
    same = InitSpec("normal", {"std": 2.0}, seed=7 - 2**64)
    assert not (rows_of(kernels, other) == rows_of(kernels, NORMAL)).any()
    assert rows_of(kernels, same).tobytes() == rows_of(kernels, NORMAL).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_narrow_rows_are_the_exact_ones_rounded_once(kernels: NumpyKernels, dtype: str) -> None:
    for init in (NORMAL, UNIFORM):
        narrow = RowSpec(1, dtype).value_dtype
        assert rows_of(kernels, init, dtype).tobytes() == rows_of(kernels, init).astype(narrow).tobytes()


def test_the_bits_are_these_on_every_machine(kernels: NumpyKernels) -> None:
    extremes = np.array([0, -1, 1, 2**63 - 1, -(2**63)], np.int64)
    values = rows_of(kernels, NORMAL, "float32", 2, extremes)
    assert [value.hex() for value in values[:, 0].astype(float).tolist()] == PINNED_FIRST
    digest = hashlib.sha256(
        rows_of(kernels, NORMAL).astype("<f8").tobytes() + rows_of(kernels, UNIFORM).astype("<f8").tobytes()
    )
    assert digest.hexdigest() == PINNED_DIGEST


def test_a_key_far_out_in_the_tail_starts_where_the_distribution_says(kernels: NumpyKernels) -> None:
    for number in (0, 1 << 12, 5 << 30, 2**64 - 1, 2**64 - (9 << 28), 1 << 50):
        key = key_of_hash(number, NORMAL)
        value = rows_of(kernels, NORMAL, dim=1, keys=np.array([key], np.uint64).view(np.int64))[0, 0] / 2.0
        share = ((number >> 12) + 0.5) * 2.0**-52
        expected = (
            statistics.NormalDist().inv_cdf(share) if share < 0.5 else -statistics.NormalDist().inv_cdf(1 - share)
        )
        assert math.isclose(value, expected, rel_tol=1e-9)


def key_of_hash(number: int, init: InitSpec) -> int:
    """The key whose first column is hashed to `number`: every step of the hash can be taken back."""
    return unmixed((unmixed(number) - 0x9E3779B97F4A7C15) % 2**64) ^ int(mixed_seed(init))


def unmixed(number: int) -> int:
    # The factors' inverses modulo 2**64.
    for shift, inverse in ((31, 0x319642B2D24D8EC3), (27, 0x96DE1B173F119089), (30, 1)):
        number = (number ^ number >> shift ^ number >> 2 * shift) * inverse % 2**64
    return number
