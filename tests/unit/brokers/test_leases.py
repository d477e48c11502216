"""What the reports of replicas hold of a log."""

from __future__ import annotations

from typing import Any

from paramstream.brokers.reports import Reports
from paramstream.transport.messages import Report

TOPIC = 7


def commits_held(report: Report) -> tuple[int, ...]:
    reports = Reports()
    reports.take(report)
    (lease,) = reports.leases((TOPIC, 1))
    return lease.commits


def report(**fields: Any) -> Report:
    return Report("replica", (TOPIC,), ((TOPIC, 3, 300, ""),), b"", 0, (), **fields)


def test_the_version_served_and_the_one_fetched_are_held_and_a_pinned_one_is_not() -> None:
    assert commits_held(report()) == (300,)
    assert commits_held(report(fetching=((TOPIC, 400),))) == (300, 400)
    assert commits_held(report(pinned=(TOPIC,))) == ()
    assert commits_held(report(pinned=(TOPIC,), fetching=((TOPIC, 200),))) == (200,)
