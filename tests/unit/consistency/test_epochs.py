"""What is above the end of its epoch is lost, for everybody alike."""

from __future__ import annotations

from paramstream.consistency.epochs import REMEMBERED_EPOCHS, EpochEnds
from paramstream.consistency.position import position


def test_a_position_above_its_epochs_end_is_lost() -> None:
    ends = EpochEnds([(3, position(3, 10))])
    assert not ends.is_lost(position(3, 10))
    assert ends.is_lost(position(3, 11))


def test_a_position_of_an_epoch_that_goes_on_is_not_lost() -> None:
    assert not EpochEnds([(3, position(3, 10))]).is_lost(position(4, 1))


def test_a_position_of_an_epoch_that_never_opened_is_lost_once_a_later_one_has_ended() -> None:
    ends = EpochEnds([(3, position(3, 10)), (5, position(5, 0))])
    assert ends.is_lost(position(4, 1))


def test_positions_older_than_what_is_remembered_count_as_standing() -> None:
    ends = EpochEnds()
    for epoch in range(1, REMEMBERED_EPOCHS + 10):
        ends.add(position(epoch, 1))
    assert not ends.is_lost(position(2, 5))
    assert len(ends.pairs()) == REMEMBERED_EPOCHS


def test_an_end_is_added_once() -> None:
    ends = EpochEnds()
    ends.add(position(3, 10))
    ends.add(position(3, 12))
    assert ends.pairs() == [(3, position(3, 10))]
