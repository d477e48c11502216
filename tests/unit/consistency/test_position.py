"""Positions order by epoch and then by offset, and epochs grow with the clock."""

from __future__ import annotations

from paramstream.consistency.position import (
    CLOCK_END_UNIX_S,
    EPOCH_ZERO_UNIX_S,
    MAX_OFFSET,
    epoch_of,
    events_between,
    next_epoch,
    offset_of,
    position,
    show,
)


def test_a_position_holds_its_epoch_and_offset() -> None:
    at = position(7, 42)
    assert (epoch_of(at), offset_of(at), show(at)) == (7, 42, "7:42")


def test_the_last_offset_of_an_epoch_is_before_the_first_of_the_next() -> None:
    assert position(3, MAX_OFFSET) < position(4, 0)


def test_a_new_epoch_is_above_the_last_one_even_if_the_clock_is_behind() -> None:
    assert next_epoch(10**9, EPOCH_ZERO_UNIX_S + 1) == 10**9 + 1


def test_a_new_epoch_follows_the_clock_in_64ths_of_a_second() -> None:
    assert next_epoch(0, EPOCH_ZERO_UNIX_S + 10) == 640


def test_a_clock_past_2050_or_before_2026_is_not_used() -> None:
    assert next_epoch(5, CLOCK_END_UNIX_S + 1) == 6
    assert next_epoch(5, 0.0) == 6


def test_events_between_positions_of_an_epoch_are_the_difference() -> None:
    assert events_between(position(5, 3), position(5, 10)) == 7
    assert events_between(position(5, 10), position(5, 3)) == 0


def test_events_between_epochs_are_those_of_the_later_one() -> None:
    assert events_between(position(5, 3), position(6, 2)) == 3
