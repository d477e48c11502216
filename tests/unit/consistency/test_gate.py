"""The gate holds an event back until what it depends on is applied, and never for what is lost or not followed."""

from __future__ import annotations

from paramstream.consistency.gate import Gate, Ordering
from paramstream.consistency.position import position
from paramstream.consistency.stamp import Stamp
from paramstream.consistency.vector import PartitionId, VersionVector

A: PartitionId = (1, 0)
B: PartitionId = (1, 1)
C: PartitionId = (1, 2)


def stamp(at: int, own: dict[PartitionId, int] | None = None, observed: dict[PartitionId, int] | None = None) -> Stamp:
    return Stamp("p", 1, 1, VersionVector(own), VersionVector(observed), at)


def test_both_orderings_wait_for_the_producers_own_writes() -> None:
    for ordering in Ordering:
        gate = Gate(ordering, [A, B])
        assert gate.blocked_by(A, stamp(1, own={B: 1})) == (B, 1)
        gate.applied(B, stamp(1))
        assert gate.blocked_by(A, stamp(1, own={B: 1})) is None


def test_only_causal_order_waits_for_what_the_producer_had_observed() -> None:
    event = stamp(1, observed={B: 1})
    assert Gate(Ordering.PRAM, [A, B]).blocked_by(A, event) is None
    assert Gate(Ordering.CAUSAL, [A, B]).blocked_by(A, event) == (B, 1)


def test_partitions_that_are_not_followed_are_ignored() -> None:
    assert Gate(Ordering.CAUSAL, [A]).blocked_by(A, stamp(1, own={C: 9})) is None


def test_the_events_own_partition_is_in_order_anyway() -> None:
    assert Gate(Ordering.CAUSAL, [A]).blocked_by(A, stamp(5, own={A: 4})) is None


def test_a_lost_dependency_is_passed_and_counted() -> None:
    gate = Gate(Ordering.PRAM, [A, B])
    lost = position(1, 9)
    event = stamp(1, own={B: lost})
    assert gate.blocked_by(A, event) == (B, lost)
    gate.ended(B, position(1, 3))
    gate.moved(B, position(2, 0))
    assert gate.blocked_by(A, event) is None
    gate.applied(A, event)
    assert gate.lost_dependencies == 1


def test_the_vector_handed_out_is_closed() -> None:
    gate = Gate(Ordering.PRAM, [A])
    gate.applied(A, stamp(3, own={B: 7}, observed={C: 5}))
    assert gate.vector() == VersionVector({A: 3, B: 7, C: 5})
