"""When a keeper's next snapshot is due."""

from __future__ import annotations

import pytest

from paramstream.consumers.due import INTERVAL_S, PACE, Kept, LogLoad, Reached

SHARE = 100
CALM, PRESSED = LogLoad(0, SHARE, is_pressed=False), LogLoad(0, SHARE, is_pressed=True)
FIRST = Reached(appended=1000, version=0, applied=(10, 20))


def kept(*snapshots: Reached, took_s: float = 0.0) -> Kept:
    made = Kept(since=0.0)
    for snapshot in snapshots:
        made.made(snapshot, 0.0, took_s)
    return made


@pytest.mark.parametrize(
    ("state_bytes", "is_trimmed", "now", "due"),
    [(SHARE - 1, False, 1.0, False), (SHARE, False, 1.0, True), (0, True, 1.0, True), (0, False, INTERVAL_S, True)],
)
def test_the_first_one_is_due_by_what_the_log_holds(state_bytes: int, is_trimmed: bool, now: float, due: bool) -> None:
    new = Kept(since=0.0, is_trimmed=is_trimmed)
    assert new.is_due(FIRST, LogLoad(state_bytes, SHARE, is_pressed=False), now) == due


def test_the_next_one_is_due_by_what_was_appended_and_by_time() -> None:
    last = kept(FIRST, FIRST)
    assert not last.is_due(FIRST, CALM, 10 * INTERVAL_S), "nothing has moved"
    little, much = FIRST._replace(appended=1000 + SHARE - 1), FIRST._replace(appended=1000 + SHARE)
    assert last.is_due(much, CALM, 0.5) and not last.is_due(little, CALM, 0.5)
    assert last.is_due(little, CALM, INTERVAL_S)
    assert last.is_due(FIRST._replace(version=5), CALM, INTERVAL_S)


def test_snapshots_that_take_long_are_made_seldom_unless_the_log_is_pressed() -> None:
    last, much = kept(FIRST, FIRST, took_s=3.0), FIRST._replace(appended=5000, applied=(50, 60))
    assert not last.is_due(much, CALM, PACE * 3.0 - 0.1)
    assert last.is_due(much, CALM, PACE * 3.0)
    assert last.is_due(much, PRESSED, 0.5)


def test_a_log_that_is_pressed_lets_go_of_the_oldest_snapshot_however_little_comes_and_no_more_are_made() -> None:
    later = FIRST._replace(appended=5000, applied=(50, 60))
    last = kept(FIRST, later)
    little = later._replace(appended=5001, applied=(51, 60))
    for reached in (later, little):
        assert not last.is_due(reached, CALM, 1.0)
        assert last.is_due(reached, PRESSED, 1.0)
    last.made(little, 1.0, 0.1)
    assert not last.is_due(little, PRESSED, 2.0)
    assert not last.is_due(little._replace(appended=5002, applied=(52, 60)), PRESSED, 2.0), "every look would make one"


def test_what_was_kept_before_a_move_is_let_go_of_after_it() -> None:
    last = kept(FIRST, FIRST)
    after = Reached(appended=7, version=0, applied=(10, 20))
    assert last.is_due(after, PRESSED, 1.0)
    last.made(after, 1.0, 0.1)
    assert last.is_due(after, PRESSED, 2.0)
    last.made(after, 2.0, 0.1)
    assert not last.is_due(after, PRESSED, 3.0)


def test_a_snapshot_of_a_replica_that_was_behind_is_followed_by_one_when_it_has_caught_up() -> None:
    behind = FIRST._replace(applied=(4, 20))
    last = kept(FIRST, behind)
    assert last.is_due(FIRST, CALM, 1.0)
    assert not last.is_due(behind, CALM, 1.0), "it has not moved"
    assert last.is_due(FIRST._replace(appended=7), CALM, 1.0), "its partitions were opened anew"
