"""When a task keeps a snapshot: not before what it rests on is durable, and not so often that it does nothing else."""

from __future__ import annotations

import pytest

from paramstream.consumers.processors.core import EVERY_S, SHARE, Captured, SnapshotPlan


@pytest.fixture
def plan() -> SnapshotPlan[str]:
    return SnapshotPlan(10, now=0.0)


def test_a_snapshot_is_due_a_while_after_an_input_came(plan: SnapshotPlan[str]) -> None:
    assert plan.is_saved and not plan.is_due(EVERY_S)
    plan.took(11)
    assert not plan.is_saved
    assert not plan.is_due(EVERY_S / 2) and plan.is_due(EVERY_S)


def test_at_the_end_whatever_is_not_saved_is_due_at_once(plan: SnapshotPlan[str]) -> None:
    assert not plan.is_due(0.0, ending=True)
    plan.took(11)
    assert plan.is_due(0.0, ending=True)


def test_it_is_written_once_the_outputs_before_it_are_durable(plan: SnapshotPlan[str]) -> None:
    plan.took(11)
    plan.captured("at 11", outputs=3, cost_s=0.0)
    plan.took(12)
    assert plan.is_pending and not plan.is_due(100.0)
    assert plan.ready(durable=2) is None
    assert plan.ready(durable=3) == Captured(11, "at 11", 3)
    plan.written(5.0, cost_s=0.0)
    assert (plan.saved, plan.position) == (11, 12)
    assert not plan.is_due(5.0) and plan.is_due(5.0 + EVERY_S)


def test_a_costly_state_is_kept_seldom(plan: SnapshotPlan[str]) -> None:
    plan.took(11)
    plan.captured("large", outputs=0, cost_s=1.0)
    assert plan.ready(0)
    plan.written(2.0, cost_s=1.5)
    plan.took(12)
    assert not plan.is_due(2.0 + SHARE * 2.4) and plan.is_due(2.0 + SHARE * 2.5)


def test_one_that_could_not_be_written_is_tried_anew_later(plan: SnapshotPlan[str]) -> None:
    plan.took(11)
    plan.captured("at 11", outputs=0, cost_s=0.0)
    plan.failed(1.0)
    assert plan.saved == 10 and not plan.is_pending
    assert not plan.is_due(1.0) and plan.is_due(1.0 + EVERY_S)


def test_an_input_that_comes_twice_is_a_fault_of_ours(plan: SnapshotPlan[str]) -> None:
    with pytest.raises(AssertionError):
        plan.took(10)
