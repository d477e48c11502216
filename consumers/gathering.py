"""Waits until replicas serve a version, by what they report of themselves to the broker."""

from __future__ import annotations

import time

from ..errors import InvalidEvent, ParamstreamError, ParamstreamTimeout
from ..transport.calls import ListReplicas, ListVersions, TopicRecord, VersionRecord
from ..transport.directory import Directory
from ..transport.messages import Report
from .scope import time_left
from .status import KEEPER_PREFIX, STALE_S, ReplicaStatus

LOOK_S = 0.05
"""How often reports are asked for; replicas send one within as long after each switch."""


def wait_replicas(directory: Directory, topic: str, version: int, count: int, timeout: float) -> None:
    """Blocks until `count` replicas serve that sealing of `version`, or a later commit.

    Raises a replica's own error, under its name, where the others are too few; after `timeout` s `ParamstreamTimeout` that
    names who is behind, and why as far as it is known.
    """
    if count < 1:
        raise InvalidEvent(f"count={count}; at least one replica can be waited for", topic=topic, version=version)
    deadline = time.monotonic() + timeout
    record = directory.topic(topic)
    late: ParamstreamTimeout | None = None
    while True:
        try:
            commit = _commit_of(directory, record, version, deadline)
            reports: list[Report] = directory.request(ListReplicas(record.id), list[Report], time_left(deadline))
        except ParamstreamTimeout as unanswered:
            # The last look says more than that there was no time for another one.
            raise late or unanswered from None
        serving = [report for report in reports if not report.name.startswith(KEEPER_PREFIX)]
        statuses = [ReplicaStatus.of_report(report, directory) for report in serving]
        behind = [status for status in statuses if not _serves(status, topic, version, commit)]
        if len(statuses) - len(behind) >= count:
            return
        failed = [status for status in behind if _error_of(status, topic, version) is not None]
        if failed and len(statuses) - len(failed) < count:
            raise _named(failed[0].name, failed[0].failed[topic])
        late = ParamstreamTimeout(
            f"{len(statuses) - len(behind)} of {count} replicas serve the version"
            + (f"; behind: {'; '.join(_lag_of(status, topic) for status in behind)}" if behind else ""),
            topic=topic,
            version=version,
        )
        if time.monotonic() >= deadline:
            raise late
        time.sleep(min(LOOK_S, time_left(deadline)))


def _commit_of(directory: Directory, record: TopicRecord, version: int, deadline: float) -> int | None:
    """The position of the commit that the number stands for; None where the owner knows none."""
    call = ListVersions(record.id)
    known: list[VersionRecord] = directory.request(call, list[VersionRecord], time_left(deadline))
    return next((v.position for v in reversed(known) if v.version == version and not v.superseded), None)


def _serves(status: ReplicaStatus, topic: str, version: int, commit: int | None) -> bool:
    served = status.served.get(topic)
    if served is None or status.age_s > STALE_S or _error_of(status, topic, version) is not None:
        return False
    return served.version >= version if commit is None else served.position >= commit


def _error_of(status: ReplicaStatus, topic: str, version: int) -> ParamstreamError | None:
    """Why it will not serve `version`: its weights have stopped, or its module cannot take just that one."""
    error = status.failed.get(topic)
    stands = error is not None and (error.partition is not None or error.version == version)
    return error if stands and status.age_s <= STALE_S else None


def _named(name: str, error: ParamstreamError) -> ParamstreamError:
    error.problem = f"replica {name!r}: {error.problem}"
    return error


def _lag_of(status: ReplicaStatus, topic: str) -> str:
    served = status.served.get(topic)
    at = "serves nothing yet" if served is None else f"serves {served.version}{' (pinned)' if served.pinned else ''}"
    heard = f", not heard of for {status.age_s:.1f} s" if status.age_s > STALE_S else ""
    error = f", last error: {status.last_error}" if status.last_error else ""
    return f"{status.name!r} {at}{heard}{error}"
