"""Between the log's times, whole nanoseconds since 1970, and the `datetime` of users, which knows microseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NS = 1000


def moment_of(time_ns: int) -> datetime:
    """The microsecond in which it was, in UTC."""
    return _EPOCH + timedelta(microseconds=time_ns // _NS)


def last_ns_of(moment: datetime) -> int:
    """The last nanosecond of that microsecond: what was at `moment_of(time_ns)` is not behind it. `moment` has a zone."""
    return (moment - _EPOCH) // _MICROSECOND * _NS + _NS - 1
