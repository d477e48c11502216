"""Waiting for replicas by their reports alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from paramstream.consumers.gathering import wait_replicas
from paramstream.errors import CorruptLog, ParamstreamError, ParamstreamTimeout, SchemaMismatch
from paramstream.transport.calls import Call, ListReplicas, ListTopics, ListVersions, TopicRecord, VersionRecord
from paramstream.transport.directory import Directory
from paramstream.transport.messages import Report
from paramstream.transport.wire import WireError

TOPIC = TopicRecord("model", 7, 1, "write_back", 8)


def sealed(version: int, position: int, superseded: bool = False) -> VersionRecord:
    return VersionRecord(version, position, 0, 1, 1, b"", True, 1, superseded)


def report(name: str, version: int, position: int, error: ParamstreamError | None = None, age_s: float = 0.1) -> Report:
    failed = () if error is None else ((TOPIC.id, WireError.of(error)),)
    return Report(name, (TOPIC.id,), ((TOPIC.id, version, position, ""),), b"", 0, (), age_s=age_s, failed=failed)


def broker_of(versions: Sequence[VersionRecord], *looks: Sequence[Report]) -> Directory:
    """Answers one look after the other; after the last one it answers nothing more in time."""
    left = list(looks)

    def ask(call: Call, kind: Any, timeout: float) -> Any:
        match call:
            case ListTopics():
                return [TOPIC]
            case ListVersions():
                return versions
            case ListReplicas() if left:
                return left.pop(0)
            case _:
                raise ParamstreamTimeout(f"the broker did not answer within {timeout} s")

    return Directory(ask)


def test_the_number_stands_for_its_last_sealing_and_a_later_commit_counts() -> None:
    versions = [sealed(5, 50, superseded=True), sealed(9, 90, superseded=True), sealed(5, 120), sealed(6, 130)]
    old = [report("a", 9, 90), report("b", 5, 50)]
    new = [report("a", 5, 120), report("b", 6, 130)]
    wait_replicas(broker_of(versions, old, new), "model", 5, 2, timeout=5.0)
    with pytest.raises(ParamstreamTimeout, match="0 of 1 replicas"):
        wait_replicas(broker_of(versions, old), "model", 5, 1, timeout=5.0)


def test_a_replica_that_is_not_heard_of_does_not_count_and_is_named() -> None:
    looks = [report("a", 5, 50), report("b", 5, 50, age_s=7.0), report("c", 4, 40)]
    with pytest.raises(ParamstreamTimeout) as late:
        wait_replicas(broker_of([sealed(5, 50)], looks), "model", 5, 2, timeout=5.0)
    assert late.value.problem == (
        "1 of 2 replicas serve the version; behind: 'b' serves 5, not heard of for 7.0 s; 'c' serves 4"
    )


def test_an_error_ends_the_wait_where_it_stands_for_this_version_and_the_others_are_too_few() -> None:
    versions = [sealed(5, 50)]
    about_this = SchemaMismatch("no such names", version=5)
    about_another = SchemaMismatch("no such names", version=4)
    stopped = CorruptLog("a damaged record", partition=1, version=3)
    good = report("good", 5, 50)
    for error in (about_this, stopped):
        with pytest.raises(type(error), match=f"replica 'bad': {error.problem}"):
            wait_replicas(broker_of(versions, [good, report("bad", 5, 50, error)]), "model", 5, 2, timeout=5.0)
        wait_replicas(broker_of(versions, [good, report("bad", 5, 50, error)]), "model", 5, 1, timeout=5.0)
    bad = report("bad", 4, 40, about_another)
    wait_replicas(broker_of(versions, [good, bad], [good, report("bad", 5, 50)]), "model", 5, 2, timeout=5.0)


def test_a_broker_that_answers_nothing_is_said_where_nothing_else_is_known() -> None:
    began = time.monotonic()
    with pytest.raises(ParamstreamTimeout, match="did not answer"):
        wait_replicas(broker_of([]), "model", 5, 1, timeout=0.1)
    assert time.monotonic() - began < 5.0
