"""The futures of receipts, which several tasks and threads may hold at once."""

from __future__ import annotations

import asyncio

import pytest

from paramstream.consistency.vector import VersionVector
from paramstream.errors import ParamstreamTimeout
from paramstream.producers.receipt import Outcome

DONE = VersionVector({("m", 0): 5})


async def _result(outcome: Outcome) -> VersionVector[str]:
    return await outcome


@pytest.mark.asyncio
async def test_a_task_that_is_cancelled_while_it_awaits_leaves_the_outcome_to_the_others() -> None:
    outcome = Outcome("durability")
    first, second = asyncio.ensure_future(_result(outcome)), asyncio.ensure_future(_result(outcome))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    outcome.set_result(DONE)
    assert await second == DONE and await outcome == DONE and outcome.result(0) == DONE


@pytest.mark.asyncio
async def test_an_await_that_ends_late_can_be_made_again() -> None:
    outcome = Outcome("durability")
    for awaited in (_result(outcome), asyncio.wrap_future(outcome)):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(awaited, 0.01)
    with pytest.raises(ParamstreamTimeout):
        outcome.result(0)
    outcome.set_result(DONE)
    assert await asyncio.wait_for(_result(outcome), 1.0) == DONE


def test_nobody_cancels_what_happens_anyway() -> None:
    outcome = Outcome("acceptance")
    assert not outcome.cancel() and not outcome.cancelled()
    outcome.set_result(DONE)
    assert outcome.result(0) == DONE
