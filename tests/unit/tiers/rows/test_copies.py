"""Copies of rows are what was kept last, never of before a change, and never more than there is room for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramstream.tiers.rows.copies import RowCopies

DIM = 4
MIB = 1024 * 1024
DTYPE = np.dtype(np.float32)


def copies_for(rows: int) -> RowCopies:
    """A table that holds exactly so many."""
    made = RowCopies(DIM, DTYPE, int((rows + 0.5) * MIB / RowCopies(DIM, DTYPE, MIB).capacity))
    assert made.capacity == rows
    return made


def keep(copies: RowCopies, keys: list[int], position: int, value: float = 1.0) -> None:
    count = len(keys)
    copies.keep(
        np.array(keys, np.int64), np.full((count, DIM), value, np.float32), np.ones(count, np.bool_),
        np.full(count, position, np.uint64),
    )  # fmt: skip


def held(copies: RowCopies, *keys: int) -> list[float | None]:
    values, _, known = copies.read(np.array(keys, np.int64), np.ones(len(keys), np.bool_))
    return [float(value) if is_known else None for value, is_known in zip(values[:, 0], known, strict=True)]


def test_what_was_kept_is_read_and_what_was_not_is_unknown() -> None:
    copies = copies_for(8)
    assert held(copies, 1, -1) == [None, None]
    copies.keep(
        np.array([1, -1, 1]), np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM), np.array([True, False, True]),
        np.array([5, 5, 5], np.uint64),
    )  # fmt: skip
    values, there, known = copies.read(np.array([-1, 1, 2**63 - 1, 1]), np.ones(4, np.bool_))
    assert known.tolist() == [True, True, False, True]
    assert values[known, 0].tolist() == [DIM, 0, 0] and there[known].tolist() == [False, True, True]
    assert not copies.read(np.array([-1]), np.zeros(1, np.bool_))[2].any()
    counters = copies.counters()
    assert (len(copies), counters.hits, counters.misses) == (2, 3, 4)


def test_a_change_drops_older_copies_alone() -> None:
    copies = copies_for(8)
    keep(copies, [1, 2], 5)
    copies.drop(np.array([1, 3, 1]), 5)
    assert held(copies, 1, 2) == [1.0, 1.0]
    copies.drop(np.array([1, 3, 1]), 6)
    assert held(copies, 1, 2) == [None, 1.0]
    assert copies.counters().dropped == 1


def test_a_newer_copy_takes_the_place_of_an_older_one_and_never_the_other_way_round() -> None:
    copies = copies_for(8)
    keep(copies, [1, 2], 5, 5.0)
    keep(copies, [1], 4, 4.0)
    keep(copies, [2], 6, 6.0)
    assert held(copies, 1, 2) == [5.0, 6.0]


def test_there_are_never_more_than_there_is_room_for_and_what_is_used_stays() -> None:
    copies = copies_for(100)
    keep(copies, list(range(20)), 1)
    for scan in range(100, 3000, 50):
        held(copies, *range(20))
        keep(copies, list(range(scan, scan + 50)), 1)
        assert len(copies) <= copies.capacity
    assert held(copies, *range(20)) == [1.0] * 20
    assert copies.counters().evicted > 2000
    keep(copies, list(range(5000, 6000)), 1)
    assert len(copies) <= copies.capacity


def test_clear_forgets_everything_and_goes_on() -> None:
    copies = copies_for(4)
    keep(copies, [1, 2, 3], 1)
    copies.clear()
    assert held(copies, 1, 2, 3) == [None] * 3 and len(copies) == 0
    keep(copies, [3, 4, 5, 6], 1)
    assert held(copies, 3, 4, 5, 6) == [1.0] * 4


def test_no_room_for_one_is_said() -> None:
    with pytest.raises(ValueError, match="hold no copy"):
        RowCopies(DIM, DTYPE, 10)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["keep", "drop", "read"]), st.lists(st.integers(0, 12), max_size=6), st.integers(1, 30)
        ),
        max_size=40,
    )
)
def test_no_read_is_of_before_a_change(steps: list[tuple[str, list[int], int]]) -> None:
    """As a client uses it: copies come as of any position up to the last one, and are not kept where a change came since."""
    copies = RowCopies(DIM, DTYPE, 500)
    now, changed_at = 1, dict.fromkeys(range(13), 0)
    for what, keys, back in steps:
        now += 1
        if what == "drop":
            copies.drop(np.array(keys, np.int64), now)
            changed_at |= dict.fromkeys(keys, now)
        elif what == "keep":
            position = max(1, now - back)
            keep(copies, [key for key in keys if changed_at[key] <= position], position, float(position))
        else:
            for key, value in zip(keys, held(copies, *keys), strict=True):
                assert value is None or value >= changed_at[key]
        assert len(copies) <= copies.capacity
