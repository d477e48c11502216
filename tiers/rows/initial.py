"""First values of rows: from (seed, key, column) alone, the same bits on every machine.

A number is made by hashing its own place (a counter, not a sequence), so that rows may come into being in any order. What follows
uses integer operations and IEEE + - * / and sqrt in float64, which every machine rounds alike, and no function of a C library, which
machines round as they please. The last step rounds to the table's dtype, to nearest, ties to even.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from .spec import InitSpec

GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MASK: Final = (1 << 64) - 1

# Rational approximations of the inverse of the normal distribution, Wichura's algorithm AS 241 (PPND16): near the middle, in the
# tails, and far out. The highest power comes first.
MIDDLE: Final = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)  # fmt: skip
TAIL: Final = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
     3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
)  # fmt: skip
FAR: Final = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
     2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
     1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)  # fmt: skip
MIDDLE_REACH: Final = 0.425
TAIL_REACH: Final = 5.0

LN2: Final = 0.6931471805599453
LOG_TERMS: Final = 12
"""Terms of the series of the logarithm: their rest is below 1e-19 where the argument is within [√½, √2]."""

_Floats = NDArray[np.float64]


def exact_rows(init: InitSpec, keys: NDArray[np.int64], dim: int) -> _Floats:
    """(n, dim): the first values of rows, of a kind that is no constant, before they are rounded to the table's dtype."""
    hashes = _hashes(init, keys, dim)
    if init.kind == "uniform":
        low, high = init.settings["lo"], init.settings["hi"]
        return low + (high - low) * ((hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53)
    return init.settings["std"] * _normal(((hashes >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spreads each 64-bit number over all 64 bits (the finalizer of SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def mixed_seed(init: InitSpec) -> np.uint64:
    """The seed, spread over all bits."""
    seed: np.uint64 = _mix(np.array([init.seed & _MASK], np.uint64) + GOLDEN)[0]
    return seed


def _hashes(init: InitSpec, keys: NDArray[np.int64], dim: int) -> NDArray[np.uint64]:
    """(n, dim): 64 bits for each place."""
    rows = _mix(keys.view(np.uint64) ^ mixed_seed(init))
    columns = np.arange(1, dim + 1, dtype=np.uint64) * GOLDEN
    return _mix(rows[:, None] + columns[None, :])


def _normal(shares: _Floats) -> _Floats:
    """The point below which a share (within (0, 1)) of the standard normal distribution lies."""
    off = shares - 0.5
    result = off * _ratio(MIDDLE, MIDDLE_REACH * MIDDLE_REACH - off * off)
    outer = np.abs(off) > MIDDLE_REACH
    if outer.any():
        side = off[outer]
        depth = np.sqrt(-_log(np.where(side < 0, shares[outer], 1.0 - shares[outer])))
        size = np.where(depth <= TAIL_REACH, _ratio(TAIL, depth - 1.6), _ratio(FAR, depth - 5.0))
        result[outer] = np.where(side < 0, -size, size)
    return result


def _ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], at: _Floats) -> _Floats:
    above, below = (np.full_like(at, powers[0]) for powers in polynomials)
    for one, other in zip(polynomials[0][1:], polynomials[1][1:], strict=True):
        above = above * at + one
        below = below * at + other
    return above / below


def _log(numbers: _Floats) -> _Floats:
    """The natural logarithm of normal positive numbers, to about 1e-15, by arithmetic alone."""
    bits = numbers.view(np.int64)
    exponents = ((bits >> 52) - 1023).astype(np.float64)
    mantissas = ((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
    large = mantissas > 1.4142135623730951
    mantissas = np.where(large, mantissas * 0.5, mantissas)
    exponents = np.where(large, exponents + 1.0, exponents)
    ratio = (mantissas - 1.0) / (mantissas + 1.0)
    square = ratio * ratio
    series = np.zeros_like(square)
    for term in range(LOG_TERMS - 1, -1, -1):
        series = series * square + 1.0 / (2 * term + 1)
    return exponents * LN2 + 2.0 * ratio * series
