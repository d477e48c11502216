"""Times of the log as users see them, and back: a time that was told means the event that it was told of."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from paramstream.consumers.times import last_ns_of, moment_of


@given(st.integers(0, 2**62))
def test_an_event_is_not_behind_the_moment_that_is_told_of_it(time_ns: int) -> None:
    assert time_ns <= last_ns_of(moment_of(time_ns)) < time_ns + 1000


def test_a_moment_means_the_same_in_every_zone() -> None:
    east = datetime(2026, 7, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    assert last_ns_of(east) == last_ns_of(datetime(2026, 7, 1, 12, tzinfo=UTC)) == 1_782_907_200_000_000_999
