"""Several brokers over one log: what a world must offer, and moments that chance meets seldom."""

from __future__ import annotations

from typing import cast

from paramstream.brokers.takeover import claim_record
from paramstream.events.codec import Head, encode_event
from paramstream.events.kinds import Put, PutItem
from paramstream.transport.messages import FORMAT, Follow, Hello, Moved, Refused, Welcome
from simulation.kinds import kind_of
from simulation.network import Connection, Peer
from simulation.play import a_world
from simulation.scenario import do, drawn
from simulation.shared_world import SharedWorld

SEED = 4
HOSTILE_SEEDS = range(4, 52, 4)


def test_the_shared_worlds_are_hostile() -> None:
    """Owners are taken over, some while they write; what they had accepted is lost and taken back; and much goes through."""
    claims, void, undone, outcomes = 0, 0, 0, set[str]()
    for seed in HOSTILE_SEEDS:
        assert kind_of(seed) == "shared"
        with a_world(seed) as world:
            assert isinstance(world, SharedWorld)
            for step in drawn(seed).steps:
                do(world, step)
            assert world.heal()
            for partition, kafka in world.kafka.partitions.items():
                log = world.standing.log(partition)
                claims += len(log.claims())
                void += len(kafka.records()) - len(log.records()) - len(log.claims())
            undone += sum(len(consumer.undone) for consumer in world.consumers)
            outcomes.update(*(made.outcomes for producer in world.producers for made in producer.made))
    assert claims > 60 and void > 20 and undone > 2
    assert {"durable", "lost", "refused", "accepted"} <= outcomes


class _Silent:
    name = "somebody"

    def connected(self, connection: Connection) -> None: ...
    def lost(self) -> None: ...
    def received(self, item: object) -> None: ...


def test_what_comes_right_behind_the_event_that_meets_another_claim_is_not_refused_as_fenced() -> None:
    """The partition is given up before the next message: a session or a replica would stop for good where it need only look again."""
    with a_world(SEED) as world:
        assert isinstance(world, SharedWorld)
        chance = world.stream("moves")
        process, partition = next(
            (each, partition)
            for each in world.running.values()
            for partition, owned in each.partitions.owned.items()
            if owned.core.settings.role == "state"
        )
        connection = Connection(10_000, cast("Peer", _Silent()), process)
        process.connections[connection.id] = connection
        process.received(connection, Hello(FORMAT))
        process.turn()
        assert any(isinstance(item, Welcome) for item in connection.down)
        owned = process.partitions.owned[partition]
        epoch = owned.core.epoch
        owned.core.join("p", 1, None, 0)
        world.kafka.partition(partition).land([(None, memoryview(claim_record(partition, epoch + 1, 7, "another")))])
        owned.log.append(owned.core.base())
        for _ in range(100):
            world.kafka.move(chance)
            for tenure in list(process.log.tenures):
                tenure.step(chance)
        connection.down.clear()
        head = Head(producer="p", incarnation=1, sequence=1, joined_epoch=epoch)
        event = bytes(encode_event(partition, head, Put(items=(PutItem(key=b"k", nbytes=1),)), [b"v"]))
        for item in (event, event, Follow(*partition, 0, 1 << 20)):
            process.received(connection, item)
        process.turn()
        assert partition not in process.partitions.owned
        assert [type(item) for item in connection.down if isinstance(item, Moved | Refused)] == [Moved]
