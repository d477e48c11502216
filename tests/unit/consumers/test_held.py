"""A commit whose chunks were dropped waits while they are fetched once more, and the log may be another one by then."""

from __future__ import annotations

import numpy as np
import pytest

from feeding.fakes import FakeBroker
from feeding.writer import Writer
from paramstream.consistency.gate import Ordering
from paramstream.consumers.effects import Deliver, Effect, EpochBegan, SendFetch, Step, Undo
from paramstream.consumers.replica import Replica
from paramstream.consumers.subscription_core import SubscriptionCore
from paramstream.errors import CorruptLog
from paramstream.tiers.store import TieredStore
from paramstream.transport.messages import Fetched, Following


def run(core: SubscriptionCore, held: int) -> list[Effect]:
    """What is offered at position `held` needs what came before it once more."""
    effects: list[Effect] = []
    for effect in core.steps():
        effects.append(effect)
        if isinstance(effect, Deliver) and effect.frame.position == held:
            core.hold(effect.partition, 0)
        elif isinstance(effect, Step):
            core.confirm(effect)
    return effects


def answer(core: SubscriptionCore, writer: Writer, effects: list[Effect], held: int) -> list[Effect]:
    (fetch,) = (effect for effect in effects if isinstance(effect, SendFetch))
    core.fetched(
        Fetched(fetch.id, *writer.partition, 1, writer.position, writer.position, None), writer.after(fetch.after)
    )
    return run(core, held)


@pytest.mark.parametrize("lost", [1, 2])
def test_what_waits_is_not_offered_again_where_the_log_has_lost_it(lost: int) -> None:
    """1: only the event that waits is lost. 2: the last one that was applied is lost with it."""
    writer = Writer((7, 0))
    core = SubscriptionCore(Ordering.CAUSAL, {writer.partition: 0})
    core.connected()
    run(core, 0)
    core.following(Following(*writer.partition, 0, 0, 0, (), 0))
    writer.put(b"a", b"")
    writer.put(b"b", b"")
    writer.put(b"c", b"")
    held = writer.position
    for frame in writer.after(0):
        core.event(frame)
    assert any(isinstance(effect, SendFetch) for effect in run(core, held))
    core.disconnected()
    writer.open_epoch(end=held - lost)
    core.connected()
    again = answer(core, writer, run(core, held), held)
    assert not any(isinstance(effect, Step) for effect in again)
    came = answer(core, writer, again, held)
    undone = [effect for effect in came if isinstance(effect, Undo)]
    assert undone == ([Undo(writer.partition, held - 2)] if lost == 2 else [])
    assert [effect.end for effect in came if isinstance(effect, EpochBegan)] == [held - lost]
    assert core.position(writer.partition) == writer.position


def test_a_version_that_a_mended_log_has_is_served_although_it_was_fetched_in_vain_before() -> None:
    broker = FakeBroker()
    values = np.full(512 * 1024, 1.0, np.float32)
    with (
        TieredStore(dram="3MiB") as store,
        Replica(["model"], directory=broker.directory, make_link=broker.make_link, store=store, arrays="numpy") as replica,
    ):  # fmt: skip
        frames = broker.weights.version(1, {"t": values}, chunk_bytes=200_000)
        twin = Writer(broker.weights.partition)
        twin.version(1, {"t": values + 1}, chunk_bytes=200_000)
        for frame in frames:
            broker.handler.event(memoryview(frame))
        whole = dict(broker.weights.log)
        broker.weights.log.update(twin.log)
        broker.settle()
        (error,) = replica.status().stopped.values()
        assert isinstance(error, CorruptLog)
        broker.disconnect()
        broker.name = "broker-2"
        broker.weights.log.update(whole)
        broker.connect()
        replica.wait_version(1, timeout=1.0)
        assert (replica.weights()["t"] == 1.0).all() and not replica.status().stopped
