"""The checker of delivery logs finds gaps, repeats, and events before what they need."""

from __future__ import annotations

from paramstream.consistency.delivery import DeliveryCheck, check_deliveries
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


def test_a_log_that_begins_in_the_middle_has_a_gap() -> None:
    assert len(check_deliveries([line(A, 1, 3)], Ordering.PRAM, {A})) == 1


def consumer(ordering: Ordering = Ordering.CAUSAL) -> DeliveryCheck[str]:
    check = DeliveryCheck[str]()
    check.follow("m/0", position(1, 2), ordering)
    check.follow("m/1", position(1, 0), ordering)
    return check


def test_what_was_observed_is_demanded_of_a_causal_consumer_only() -> None:
    seen = {"m/1": position(1, 1)}
    assert consumer().apply("m/0", position(1, 3), {}, seen) == ["m/0 1:3 needs m/1 1:1, applied 1:0"]
    assert consumer(Ordering.PRAM).apply("m/0", position(1, 3), {}, seen) == []


def test_after_an_undo_the_next_epoch_goes_on_and_what_was_undone_is_demanded_again() -> None:
    check = consumer()
    assert check.apply("m/0", position(1, 3), {}, {}) == []
    assert check.undo("m/0", position(1, 2)) == []
    assert len(check.apply("m/1", position(1, 1), {"m/0": position(1, 3)}, {})) == 1
    assert check.epoch("m/0", position(2, 0)) == []
    assert check.apply("m/1", position(1, 2), {"m/0": position(1, 3)}, {}) == []


def test_after_a_jump_it_goes_on_behind_it_and_what_was_passed_counts() -> None:
    check = consumer()
    assert check.jump("m/0", position(1, 9)) == []
    assert check.apply("m/1", position(1, 1), {"m/0": position(1, 9)}, {}) == []
    assert check.apply("m/0", position(1, 10), {}, {}) == []


def test_an_undo_goes_back_and_a_jump_goes_on() -> None:
    assert consumer().undo("m/0", position(1, 3)) == ["m/0 was taken back from 1:2 to 1:3"]
    assert consumer().jump("m/0", position(1, 1)) == ["m/0 jumped from 1:2 to 1:1"]
    assert consumer().undo("m/0", position(1, 2)) == consumer().jump("m/0", position(1, 2)) == []


def test_a_restart_may_begin_further_back() -> None:
    check = consumer()
    assert check.apply("m/0", position(1, 3), {}, {}) == []
    check.follow("m/0", position(1, 1), Ordering.CAUSAL)
    assert check.apply("m/0", position(1, 2), {}, {}) == check.apply("m/0", position(1, 3), {}, {}) == []
    assert check.apply("m/0", position(1, 3), {}, {}) == ["m/0 went from 1:3 to 1:3"]


def test_a_partition_that_is_not_followed_is_not_demanded_and_not_applied() -> None:
    check = consumer()
    check.unfollow("m/1")
    assert check.apply("m/0", position(1, 3), {"m/1": position(1, 5), "other/0": position(7, 7)}, {}) == []
    for problems in (
        check.apply("m/1", position(1, 1), {}, {}),
        consumer().undo("m/2", position(1, 1)),
        consumer().jump("m/2", position(1, 1)),
    ):
        assert len(problems) == 1 and problems[0].endswith("the partition is not followed")
