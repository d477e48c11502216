"""The checker of delivery logs finds gaps, repeats, and events before what they need."""

from __future__ import annotations

from paramstream.consistency.delivery import check_deliveries
from paramstream.consistency.gate import Ordering
from paramstream.consistency.position import position
from paramstream.consistency.stamp import Delivery, Stamp
from paramstream.consistency.vector import PartitionId, VersionVector

A: PartitionId = (1, 0)
B: PartitionId = (1, 1)


def line(partition: PartitionId, epoch: int, offset: int, own: dict[PartitionId, int] | None = None) -> Delivery:
    return Delivery(partition, Stamp("p", 1, 1, VersionVector(own), VersionVector(), position(epoch, offset)))


def test_a_log_in_order_has_no_violation() -> None:
    log = [line(A, 1, 1), line(B, 1, 1, {A: position(1, 1)}), line(A, 1, 2), line(A, 2, 1)]
    assert check_deliveries(log, Ordering.CAUSAL, {A, B}) == []


def test_a_gap_and_a_repeat_are_found() -> None:
    assert len(check_deliveries([line(A, 1, 1), line(A, 1, 3)], Ordering.PRAM, {A})) == 1
    assert len(check_deliveries([line(A, 1, 1), line(A, 1, 1)], Ordering.PRAM, {A})) == 1


def test_an_event_before_its_dependency_is_found() -> None:
    log = [line(B, 1, 1, {A: position(1, 1)}), line(A, 1, 1)]
    assert [violation.index for violation in check_deliveries(log, Ordering.PRAM, {A, B})] == [0]


def test_a_dependency_on_an_epoch_record_is_met_by_its_line() -> None:
    record, event = line(A, 1, 0), line(B, 1, 1, {A: position(1, 0)})
    assert check_deliveries([record, event], Ordering.PRAM, {A, B}) == []
    assert [violation.index for violation in check_deliveries([event, record], Ordering.PRAM, {A, B})] == [0]


def test_what_lies_before_the_start_is_not_demanded() -> None:
    event = line(B, 1, 1, {A: position(1, 7)})
    assert check_deliveries([event], Ordering.PRAM, {A, B}, {A: position(1, 7)}) == []
    assert len(check_deliveries([event], Ordering.PRAM, {A, B}, {A: position(1, 6)})) == 1
    assert len(check_deliveries([line(A, 1, 9)], Ordering.PRAM, {A}, {A: position(1, 7)})) == 1
