"""Whom a client asks first, by what replicas report and what it met with them."""

from __future__ import annotations

from collections.abc import Mapping

from paramstream.consistency.vector import PartitionId, VersionVector
from paramstream.consumers.lookups.routes import AVOID_S, REMEMBER_S, RETRY_S, Routes
from paramstream.consumers.status import STALE_S
from paramstream.events.codec import encode_vector
from paramstream.transport.messages import Report

P: PartitionId = (7, 0)


def report(name: str, serves: str, applied: Mapping[PartitionId, int] | None = None, age_s: float = 0.0) -> Report:
    vector = encode_vector(VersionVector({P: 10} if applied is None else applied))
    return Report(name, (7,), (), vector, 0, (), age_s=age_s, serves=serves)


def order(routes: Routes, *, needed: int = 0, turn: int = 0, now: float = 100.0) -> list[str]:
    return [route.endpoint for route in routes.candidates(P, needed, turn, now)]


def test_only_who_serves_and_follows_the_partition_is_asked() -> None:
    routes = Routes()
    routes.learn([report("a", "A"), report("b", ""), report("c", "C", {(7, 1): 10})], 100.0)
    assert order(routes) == ["A"]


def test_each_has_its_turn() -> None:
    routes = Routes()
    routes.learn([report(name, name.upper()) for name in "abc"], 100.0)
    assert [order(routes, turn=turn)[0] for turn in range(4)] == ["A", "B", "C", "A"]


def test_one_that_has_seen_what_is_needed_comes_first() -> None:
    routes = Routes()
    routes.learn([report("a", "A", {P: 5}), report("b", "B", {P: 9})], 100.0)
    assert [order(routes, turn=turn, needed=9) for turn in range(2)] == [["B", "A"], ["B", "A"]]


def test_one_that_was_not_heard_of_lately_comes_last() -> None:
    routes = Routes()
    routes.learn([report("a", "A", age_s=STALE_S + 1), report("b", "B")], 100.0)
    assert [order(routes, turn=turn)[0] for turn in range(2)] == ["B", "B"]


def test_one_that_failed_is_left_alone_and_then_asked_last_and_longer_each_time() -> None:
    routes = Routes()
    routes.learn([report("a", "A"), report("b", "B")], 100.0)
    routes.failed("A", "it was gone", 100.0)
    assert order(routes, now=100.0) == ["B"]
    assert order(routes, now=100.0 + RETRY_S) == ["B", "A"]
    assert order(routes, now=100.0 + AVOID_S[0]) == ["A", "B"]
    routes.failed("A", "it was gone", 101.0)
    assert order(routes, now=101.0 + AVOID_S[0]) == ["B", "A"]
    assert order(routes, now=101.0 + 2 * AVOID_S[0]) == ["A", "B"]
    for _ in range(30):
        routes.failed("A", "it was gone", 102.0)
    assert order(routes, now=102.0 + AVOID_S[1]) == ["A", "B"]
    assert "'a' at A: it was gone" in routes.describe(P)
    routes.answered("A")
    assert order(routes, now=102.0) == ["A", "B"]


def test_a_replica_that_serves_elsewhere_has_its_new_place_alone_whatever_comes_late() -> None:
    routes = Routes()
    routes.learn([report("a", "A")], 100.0)
    routes.failed("A", "it was gone", 100.0)
    assert routes.learn([report("a", "A2")], 101.0) == ["A"]
    assert routes.learn([report("a", "A", age_s=5.0)], 102.0) == []
    assert order(routes, now=102.0) == ["A2"]


def test_one_that_serves_no_more_is_forgotten_at_once_and_one_that_is_not_told_of_later() -> None:
    routes = Routes()
    routes.learn([report("a", "A"), report("b", "B")], 100.0)
    assert routes.learn([report("b", "")], 101.0) == ["B"]
    assert routes.learn([], 100.0 + REMEMBER_S - 1) == [] and order(routes) == ["A"]
    assert routes.learn([], 100.0 + REMEMBER_S + 1) == ["A"] and order(routes) == []
