"""The index of a row table: any int64 is a key, and it holds what a dict holds, through growth and removals."""

import numpy as np
import pytest
from numpy.typing import NDArray

from paramstream.errors import StorageFull
from paramstream.tiers.rows.index import ABSENT, RESERVED
from paramstream.tiers.rows.kernels import NumpyKernels

EXTREMES = [0, -1, 1, 2**63 - 1, -(2**63), 5, 5 + 2**32, 5 - 2**32]


def ints(numbers: list[int]) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def test_any_int64_is_a_key_and_any_number_a_location(kernels: NumpyKernels) -> None:
    index = kernels.new_index()
    keys = ints(EXTREMES)
    assert index.find(keys).tolist() == [ABSENT] * 8
    locations = ints([0, 1, RESERVED, RESERVED + 7, -2, -(2**62), 2**40, 3])
    index.insert(keys, locations)
    assert index.find(keys).tolist() == locations.tolist()
    assert sorted(index.keys().tolist()) == sorted(EXTREMES)
    index.move(keys[:2], ints([-5, 9]))
    index.remove(keys[2:])
    assert index.find(keys).tolist() == [-5, 9] + [ABSENT] * 6
    assert len(index) == 2
    index.clear()
    assert (len(index), index.nbytes, index.find(keys).tolist()) == (0, 0, [ABSENT] * 8)


@pytest.mark.parametrize("pattern", ["scattered", "counted", "strided"])
def test_it_holds_what_a_dict_holds_while_it_grows_and_shrinks(
    kernels: NumpyKernels, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if type(kernels) is not NumpyKernels:
        # Segments of 128 entries, so that there are many.
        monkeypatch.setattr("paramstream.tiers.rows.hash_index.LAST_BITS", 7)
    random = np.random.default_rng(4)
    universe = {
        "scattered": random.integers(-(2**63), 2**63 - 1, 8_000, np.int64, endpoint=True),
        "counted": np.arange(-4_000, 4_000),
        "strided": np.arange(8_000) << 40,
    }[pattern]
    index, model = kernels.new_index(), dict[int, int]()
    for round_number in range(12):
        missing = ints([key for key in random.permutation(universe)[:2_000].tolist() if key not in model])
        locations = np.arange(len(missing)) + round_number * 100_000
        index.insert(missing, locations)
        model.update(zip(missing.tolist(), locations.tolist(), strict=True))
        gone = random.permutation(ints(list(model)))[: len(model) // (4 if round_number < 10 else 1)]
        index.remove(gone)
        for key in gone.tolist():
            del model[key]
        assert len(index) == len(model)
        assert index.find(universe).tolist() == [model.get(key, ABSENT) for key in universe.tolist()]
    assert sorted(index.keys().tolist()) == sorted(model)


def test_every_byte_is_charged_before_it_is_held(kernels: NumpyKernels) -> None:
    index, charged = kernels.new_index(), 0

    def charge(nbytes: int) -> None:
        nonlocal charged
        assert nbytes >= 0
        charged += nbytes

    random = np.random.default_rng(5)
    for _ in range(30):
        keys = random.integers(-(2**63), 2**63 - 1, 5000)
        estimate = index.growth_bytes(len(keys))
        before = charged
        index.insert(keys, np.arange(5000), charge)
        assert charged == index.nbytes
        assert charged - before <= estimate + (1 << 21)


def test_where_a_charge_is_refused_none_of_the_keys_is_there(kernels: NumpyKernels) -> None:
    index = kernels.new_index()
    index.insert(ints([1, 2]), ints([10, 20]))
    left = 300_000

    def charge(nbytes: int) -> None:
        nonlocal left
        if nbytes > left:
            raise StorageFull("no more")
        left -= nbytes

    with pytest.raises(StorageFull):
        index.insert(np.arange(100, 100_100), np.arange(100_000), charge)
    assert len(index) == 2
    assert sorted(index.keys().tolist()) == [1, 2]
    assert index.find(ints([1, 2, 100, 50_000])).tolist() == [10, 20, ABSENT, ABSENT]


def test_a_lookup_copies_what_is_in_dram_and_says_where_the_others_are(kernels: NumpyKernels) -> None:
    index = kernels.new_index()
    index.insert(ints([1, 2, 3, 4]), ints([3, -7, RESERVED + 1, 0]))
    values = np.arange(10, dtype=np.float32).reshape(5, 2)
    rows, found = np.zeros((6, 2), np.float32), np.ones(6, np.bool_)
    locations = index.lookup(ints([1, 2, 3, 4, 5, 1]), values, rows, found)
    assert locations.tolist() == [3, -7, RESERVED + 1, 0, ABSENT, 3]
    assert found.tolist() == [True, False, False, True, False, True]
    assert rows[found].tolist() == [[6, 7], [0, 1], [6, 7]]
