"""One number of bytes that all draw from."""

import pytest

import paramstream.errors
from paramstream.tiers.budget import Budget


def test_a_charge_up_to_the_limit_fits_and_one_byte_more_does_not() -> None:
    budget = Budget(100)
    budget.charge(60)
    budget.charge(40)
    with pytest.raises(paramstream.errors.StorageFull):
        budget.charge(1)
    assert budget.held == 100
    budget.refund(1)
    budget.charge(1)


def test_the_error_names_tier_asked_held_and_limit() -> None:
    budget = Budget(100, "dram")
    budget.charge(60)
    with pytest.raises(paramstream.errors.StorageFull) as caught:
        budget.charge(41)
    assert all(part in str(caught.value) for part in ("dram", "41", "60", "100"))
    assert caught.value.retriable


def test_what_is_held_for_reuse_goes_before_a_charge_is_refused() -> None:
    budget = Budget(100)
    budget.charge(80)
    asked: list[int] = []

    def reclaim(nbytes: int) -> int:
        asked.append(nbytes)
        if len(asked) > 2:
            return 0
        budget.refund(15)
        return 15

    budget.reclaim_with(reclaim)
    budget.charge(50)
    assert (asked, budget.held) == ([30, 15], 100)
    with pytest.raises(paramstream.errors.StorageFull):
        budget.charge(50)
    assert budget.held == 100


def test_a_forced_charge_passes_the_limit_and_the_next_charge_waits_for_room() -> None:
    budget = Budget(10)
    budget.charge(10)
    budget.charge(5, forced=True)
    assert budget.held == 15
    budget.refund(5)
    with pytest.raises(paramstream.errors.StorageFull):
        budget.charge(1)
