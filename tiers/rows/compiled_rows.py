"""The loops over rows, to be compiled: gathering, scattering, folding, and one pass for each optimizer.

The arithmetic is that of `optimizers.py`, operation by operation, in float32: the same bits come out. No loop may be reordered by the
compiler (no `fastmath`), and a product and a sum are never fused.

A pass takes its rows as `slots`, without repeats. A row whose position is not below `position` is passed over. `source[i]` says where the
gradient of row i stands: from 0 on in `given`, below 0 in `sums` (at -1 - source). With `images` the rows before go to `old_values`,
`old_state` and `old_positions`, and which ones they were to `which`, one behind the other; their number is what a pass returns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numba.core import types

from .compiled_index import AHEAD, entry_of, segment_of, spread
from .intrinsics import (
    BYTES,
    GIVEN_BYTES,
    GIVEN_INTS,
    GIVEN_NUMBERS,
    INTS,
    MARKS,
    NUMBERS,
    PLACES,
    POSITIONS,
    copy,
    inlined,
    kernel,
    prefetch,
)

LINE: Final = 64
"""Bytes of a cache line."""
LANES: Final = 16
MAX_STEPS: Final = np.float32(1 << 24)
NAN: Final = np.float32(np.nan)


@inlined
def fetch(flat: Any, row: Any, width: Any, line: Any) -> None:
    """Fetches the first lines of a row; of a long one the processor guesses the rest."""
    for at in range(row * width, row * width + min(width, 8 * line), line):
        prefetch(flat, at)


@inlined
def one_nan(number: Any) -> Any:
    """The number; for a NaN always the same one."""
    return NAN if np.isnan(number) else number


def lookup(
    entries: Any, directory: Any, depth: Any, bits: Any, values: Any, keys: Any, rows: Any, found: Any, locations: Any
) -> None:
    """Finds keys and copies the values of those in DRAM, all in one go; the rows of the others stay as they were."""
    mask = (1 << bits) - 1
    width, count = values.shape[1], len(keys)
    flat, out = values.reshape(-1), rows.reshape(-1)
    starts = np.empty(AHEAD, np.int64)
    homes = np.empty(AHEAD, np.int64)
    for i in range(count + 2 * AHEAD):
        at = i & (AHEAD - 1)
        place = i - 2 * AHEAD
        if place >= 0 and found[place]:
            copy(out, place * width, flat, locations[place] * width, width)
        place = i - AHEAD
        if 0 <= place < count:
            slot = entries[2 * entry_of(entries, starts[at], mask, homes[at], keys[place]) + 1]
            locations[place] = slot
            found[place] = (slot >= 0) & (slot < (1 << 62))
            if found[place]:
                fetch(flat, slot, width, LINE)
        if i < count:
            number = spread(keys[i])
            starts[at] = segment_of(number, directory, depth) << bits
            homes[at] = np.int64(number) & mask
            prefetch(entries, 2 * (starts[at] + homes[at]))


def gather(values: Any, slots: Any, rows: Any) -> None:
    """Copies the rows of `slots` out."""
    width = values.shape[1]
    flat, out = values.reshape(-1), rows.reshape(-1)
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            fetch(flat, slots[i + AHEAD], width, LINE)
        copy(out, i * width, flat, slots[i] * width, width)


def scatter(values: Any, slots: Any, rows: Any, places: Any) -> None:
    """Copies to each of `slots` the row of `rows` that stands at its place."""
    width = values.shape[1]
    flat, given = values.reshape(-1), rows.reshape(-1)
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            fetch(flat, slots[i + AHEAD], width, LINE)
        copy(flat, slots[i] * width, given, places[i] * width, width)


def fold(slots: Any, distinct: Any, first: Any, last: Any, owner: Any) -> Any:
    """Writes the distinct ones of `slots` in order, the first and the last place of each, and each place's number among them."""
    bits = 1
    while (1 << bits) < 2 * len(slots):
        bits += 1
    mask = (1 << bits) - 1
    seen = np.full(1 << bits, -1, np.int32)
    count = 0
    for i in range(len(slots)):
        slot = slots[i]
        at = np.int64((np.uint64(slot) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits))
        while seen[at] >= 0 and distinct[seen[at]] != slot:
            at = (at + 1) & mask
        if seen[at] < 0:
            seen[at] = count
            distinct[count] = slot
            first[count] = i
            count += 1
        owner[i] = seen[at]
        last[owner[i]] = i
    return count


def sum_repeated(given: Any, first: Any, last: Any, owner: Any, source: Any, sums: Any) -> Any:
    """Sums the rows of each slot that repeats, in order, beginning with the first one as it is. Returns how many slots do."""
    repeated = 0
    for i in range(len(first)):
        source[i] = first[i]
        if last[i] != first[i]:
            repeated += 1
            source[i] = -repeated
            for j in range(given.shape[1]):
                sums[repeated - 1, j] = given[first[i], j]
    for i in range(len(owner)):
        to = source[owner[i]]
        if to < 0 and first[owner[i]] != i:
            for j in range(given.shape[1]):
                sums[-1 - to, j] += given[i, j]
    return repeated


@inlined
def image(slot: Any, taken: Any, flat: Any, state: Any, dim: Any, width: Any, old_values: Any, old_state: Any) -> None:
    """Copies a row and its state to the next place of the rows before. All arrays are flat: to flatten one costs more than a row."""
    copy(old_values, taken * dim, flat, slot * dim, 4 * dim)
    if width > 0:
        copy(old_state, taken * width, state, slot * width, 4 * width)


@inlined
def fetch_row(slot: Any, flat: Any, state: Any, dim: Any, width: Any, positions: Any) -> None:
    """Fetches all that a pass is going to touch of a row."""
    prefetch(positions, slot)
    fetch(flat, slot, dim, LINE // 4)
    fetch(state, slot, width, LINE // 4)


def sgd(
    slots: Any, source: Any, given: Any, sums: Any, values: Any, state: Any, positions: Any, position: Any,
    images: Any, which: Any, old_values: Any, old_state: Any, old_positions: Any, rate: Any,
) -> Any:  # fmt: skip
    taken = 0
    dim, width = values.shape[1], state.shape[1]
    flat, flat_state = values.reshape(-1), state.reshape(-1)
    old_flat, old_flat_state = old_values.reshape(-1), old_state.reshape(-1)
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            fetch_row(slots[i + AHEAD], flat, flat_state, dim, width, positions)
        slot = slots[i]
        if positions[slot] >= position:
            continue
        if images:
            image(slot, taken, flat, flat_state, dim, width, old_flat, old_flat_state)
        which[taken], old_positions[taken] = i, positions[slot]
        taken += 1
        positions[slot] = position
        row = values[slot]
        gradient = given[source[i]] if source[i] >= 0 else sums[-1 - source[i]]
        for j in range(len(row)):
            row[j] = one_nan(row[j] - rate * gradient[j])
    return taken


def adagrad(
    slots: Any, source: Any, given: Any, sums: Any, values: Any, state: Any, positions: Any, position: Any,
    images: Any, which: Any, old_values: Any, old_state: Any, old_positions: Any, rate: Any, eps: Any,
) -> Any:  # fmt: skip
    taken = 0
    dim, width = values.shape[1], state.shape[1]
    flat, flat_state = values.reshape(-1), state.reshape(-1)
    old_flat, old_flat_state = old_values.reshape(-1), old_state.reshape(-1)
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            fetch_row(slots[i + AHEAD], flat, flat_state, dim, width, positions)
        slot = slots[i]
        if positions[slot] >= position:
            continue
        if images:
            image(slot, taken, flat, flat_state, dim, width, old_flat, old_flat_state)
        which[taken], old_positions[taken] = i, positions[slot]
        taken += 1
        positions[slot] = position
        row, squares = values[slot], state[slot]
        gradient = given[source[i]] if source[i] >= 0 else sums[-1 - source[i]]
        for j in range(len(row)):
            square = squares[j] + gradient[j] * gradient[j]
            row[j] = one_nan(row[j] - rate * gradient[j] / (np.sqrt(square) + eps))
            squares[j] = one_nan(square)
    return taken


def rowwise_adagrad(
    slots: Any, source: Any, given: Any, sums: Any, values: Any, state: Any, positions: Any, position: Any,
    images: Any, which: Any, old_values: Any, old_state: Any, old_positions: Any, rate: Any, eps: Any,
) -> Any:  # fmt: skip
    taken = 0
    lanes = np.empty(LANES, np.float32)
    dim, width = values.shape[1], state.shape[1]
    flat, flat_state = values.reshape(-1), state.reshape(-1)
    old_flat, old_flat_state = old_values.reshape(-1), old_state.reshape(-1)
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            fetch_row(slots[i + AHEAD], flat, flat_state, dim, width, positions)
        slot = slots[i]
        if positions[slot] >= position:
            continue
        if images:
            image(slot, taken, flat, flat_state, dim, width, old_flat, old_flat_state)
        which[taken], old_positions[taken] = i, positions[slot]
        taken += 1
        positions[slot] = position
        row = values[slot]
        gradient = given[source[i]] if source[i] >= 0 else sums[-1 - source[i]]
        for j in range(LANES):
            lanes[j] = 0
        whole = dim - dim % LANES
        for start in range(0, whole, LANES):
            for j in range(LANES):
                lanes[j] += gradient[start + j] * gradient[start + j]
        for j in range(dim - whole):
            lanes[j] += gradient[whole + j] * gradient[whole + j]
        half = LANES // 2
        while half > 0:
            for j in range(half):
                lanes[j] += lanes[half + j]
            half //= 2
        square = state[slot, 0] + lanes[0] / np.float32(dim)
        factor = rate / (np.sqrt(square) + eps)
        state[slot, 0] = one_nan(square)
        for j in range(dim):
            row[j] = one_nan(row[j] - factor * gradient[j])
    return taken


@inlined
def power(base: Any, exponent: Any) -> Any:
    """`base` to a whole number, in float64, by squaring from the lowest bit up."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result = result * base
        base = base * base
        exponent >>= 1
    return result


def adam(
    slots: Any, source: Any, given: Any, sums: Any, values: Any, state: Any, positions: Any, position: Any,
    images: Any, which: Any, old_values: Any, old_state: Any, old_positions: Any,
    lr: Any, beta1: Any, beta2: Any, rest1: Any, decay2: Any, rest2: Any, eps: Any,
) -> Any:  # fmt: skip
    taken = 0
    dim, width = values.shape[1], state.shape[1]
    flat, flat_state = values.reshape(-1), state.reshape(-1)
    old_flat, old_flat_state = old_values.reshape(-1), old_state.reshape(-1)
    last = np.float32(-1)
    rate = scale = np.float32(0)
    for i in range(len(slots)):
        if i + AHEAD < len(slots):
            fetch_row(slots[i + AHEAD], flat, flat_state, dim, width, positions)
        slot = slots[i]
        if positions[slot] >= position:
            continue
        if images:
            image(slot, taken, flat, flat_state, dim, width, old_flat, old_flat_state)
        which[taken], old_positions[taken] = i, positions[slot]
        taken += 1
        positions[slot] = position
        row = values[slot]
        first, second = state[slot, :dim], state[slot, dim : 2 * dim]
        gradient = given[source[i]] if source[i] >= 0 else sums[-1 - source[i]]
        count = min(state[slot, 2 * dim] + np.float32(1), MAX_STEPS)
        state[slot, 2 * dim] = count
        if count != last:
            last = count
            steps = np.int64(count)
            rate = np.float32(lr / (1.0 - power(beta1, steps)))
            scale = np.float32(1.0 / np.sqrt(1.0 - power(beta2, steps)))
        for j in range(dim):
            mean = first[j] + rest1 * (gradient[j] - first[j])
            square = second[j] * decay2 + rest2 * gradient[j] * gradient[j]
            row[j] = one_nan(row[j] - rate * mean / (np.sqrt(square) * scale + eps))
            first[j], second[j] = one_nan(mean), one_nan(square)
    return taken


_NUMBER: Final = types.int64
_REAL: Final = types.float32
_EXACT: Final = types.float64
_PASS: Final = (
    _NUMBER, GIVEN_INTS, GIVEN_INTS, GIVEN_NUMBERS, NUMBERS, NUMBERS, NUMBERS, POSITIONS, types.uint64,
    types.boolean, INTS, NUMBERS, NUMBERS, POSITIONS,
)  # fmt: skip
_SETTINGS: Final[dict[str, tuple[Callable[..., int], tuple[Any, ...]]]] = {
    "sgd": (sgd, (_REAL,)),
    "adagrad": (adagrad, (_REAL, _REAL)),
    "rowwise_adagrad": (rowwise_adagrad, (_REAL, _REAL)),
    "adam": (adam, (_EXACT, _EXACT, _EXACT, _REAL, _REAL, _REAL, _REAL)),
}

lookup = kernel(lookup, types.void, INTS, PLACES, _NUMBER, _NUMBER, BYTES, GIVEN_INTS, BYTES, MARKS, INTS)
gather = kernel(gather, types.void, BYTES, GIVEN_INTS, BYTES)
scatter = kernel(scatter, types.void, BYTES, GIVEN_INTS, GIVEN_BYTES, GIVEN_INTS)
fold = kernel(fold, _NUMBER, GIVEN_INTS, INTS, INTS, INTS, INTS)
sum_repeated = kernel(sum_repeated, _NUMBER, GIVEN_NUMBERS, GIVEN_INTS, GIVEN_INTS, GIVEN_INTS, INTS, NUMBERS)


@cache
def compiled_pass(kind: str) -> Callable[..., int]:
    """The pass of an optimizer, compiled on the first call."""
    function, settings = _SETTINGS[kind]
    return kernel(function, *_PASS, *settings)
