"""Fault case I10: what the broker remembers of a session is what its log holds, no more and no less."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramstream as ps
from paramstream.consistency.vector import PartitionId
from paramstream.errors import StorageFull
from paramstream.eventlog.partition import LocalPartition
from paramstream.events.codec import Buffer, Head, encode_event
from paramstream.events.kinds import Put, PutItem
from paramstream.transport.calls import Join, Joined, ListTopics, TopicRecord, Unconfirmed
from paramstream.transport.messages import Ack
from wire.peer import Peer


def values_in_log(client: ps.Client, count: int) -> list[bytes | None]:
    with client.subscribe("model", start="earliest") as events:
        return [value for _ in range(count) for _, value, _ in events.next(10.0).items]


def test_an_event_whose_write_failed_is_stored_when_it_is_tried_again_I10(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, endpoint = f"file:{tmp_path}/log", f"ipc://{tmp_path}/broker"
    broker = ps.Broker(endpoint, log=log)
    try:
        with ps.connect(endpoint) as client:
            client.create_topic("model")
            publisher = client.publisher("model", producer="trainer")
            for number in (1, 2, 3, 4):
                publisher.put("k", b"%d" % number).durable.result(10.0)
            append = LocalPartition.append

            def fails(partition: LocalPartition, frame: Buffer) -> None:
                if bytes(frame).endswith(b"5"):
                    raise StorageFull("the disk is full")
                append(partition, frame)

            with monkeypatch.context() as full:
                full.setattr(LocalPartition, "append", fails)
                with pytest.raises(ps.StorageFull):
                    publisher.put("k", b"5").accepted.result(10.0)
            broker.close()
            broker = ps.Broker(endpoint, log=log)
            # The same session, which learns from its join what stands.
            publisher.put("k", b"5").durable.result(20.0)
            publisher.put("k", b"6").durable.result(10.0)
            assert values_in_log(client, 6) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    finally:
        broker.close()


def test_a_repeat_is_answered_with_the_first_position_also_by_the_next_start_of_the_broker_I10(tmp_path: Path) -> None:
    log = f"file:{tmp_path}/log"
    payload = Put((PutItem(b"k", 1),))
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client, Peer(broker.endpoint) as peer:
        client.create_topic("model")
        peer.hello()
        writer = peer.join("trainer")
        (topic,) = peer.request(ListTopics(), list[TopicRecord])
        partition: PartitionId = topic.id, 0
        first: dict[int, int] = {}
        for number in range(1, 6):
            writer.send(partition, payload, [b"%d" % number])
            while number not in first:
                first |= dict(peer.hear(Ack).answers)
        epoch = writer.epochs[partition]
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client, Peer(broker.endpoint) as peer:
        peer.hello()
        asked = Join("trainer", writer.incarnation, (Unconfirmed(*partition, epoch, (5,)),))
        joined: Joined = peer.request(asked, Joined)
        [state] = [each for each in joined.partitions if (each.topic, each.partition) == partition]
        assert (state.last_sequence, state.positions) == (5, ((5, first[5]),))
        head = Head("trainer", writer.incarnation, 5, 4, state.epoch, 0)
        peer.send(encode_event(partition, head, payload, [b"5"]))
        assert peer.hear(Ack).answers == ((5, first[5]),)
        client.publisher("model", producer="other").put("k", b"6").durable.result(10.0)
        assert values_in_log(client, 6) == [b"1", b"2", b"3", b"4", b"5", b"6"]
