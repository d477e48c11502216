"""A replica's state goes to changelogs while the stream flows, and comes back from them with the log behind their floor."""

from __future__ import annotations

from random import Random

import pytest

import paramstream as ps
from fakes.changelogs import FakeChangelogs
from paramstream.consumers.changelog.seeding import seed_of
from paramstream.transport.calls import TopicRecord


def state_of(changelogs: FakeChangelogs, record: TopicRecord) -> dict[bytes, bytes]:
    """All entries in the changelogs of the topic, which nothing has been put behind."""
    seed = seed_of(changelogs, record, list(range(record.partitions)))
    return {key: entry.value for state in seed.state for key, entry in state.entries()}


def record_of(client: ps.Client, name: str) -> TopicRecord:
    (found,) = [topic for topic in client.topics() if topic.name == name]
    return TopicRecord(found.name, found.id, found.partitions, found.persistence, found.retain_versions)


def test_the_changelogs_hold_the_state_whatever_failed_on_the_way(client: ps.Client) -> None:
    client.create_topic("model", partitions=3)
    random = Random(5)
    outcomes = [None, None, True, False]
    changelogs = FakeChangelogs(lambda: random.choice(outcomes))
    publisher = client.publisher("model", producer="trainer")
    model: dict[str, bytes] = {}
    with client.replica("model", visibility="durable") as replica:
        writing = replica.write_back(changelogs)
        for round_ in range(8):
            for n in range(200):
                key = f"key-{random.randrange(60)}"
                if random.random() < 0.3 and key in model:
                    del model[key]
                    publisher.delete(key)
                else:
                    model[key] = b"%d-%d" % (round_, n)
                    publisher.put(key, model[key])
            publisher.flush()
        outcomes[:] = [None]
        replica.wait(publisher.put("last", b"value"))
        model["last"] = b"value"
        publisher.flush()
        vector = replica.vector
        record = record_of(client, "model")
        writing.wait({(record.id, number): vector["model", number] for number in range(3)}, timeout=30)
        writing.close(10)
        for stored in changelogs.stored.values():
            stored.compact()
        assert state_of(changelogs, record) == {key.encode(): value for key, value in model.items()}


def test_a_newer_writer_ends_the_older_one(client: ps.Client) -> None:
    client.create_topic("model")
    changelogs = FakeChangelogs()
    publisher = client.publisher("model", producer="trainer")
    with (
        client.replica("model", visibility="durable") as one,
        client.replica("model", visibility="durable") as other,
    ):
        publisher.put("a", b"1").durable.result(10)
        partition = record_of(client, "model").id, 0
        first = one.write_back(changelogs)
        first.wait({partition: 1}, timeout=10)
        second = other.write_back(changelogs)
        second.wait({partition: 1}, timeout=10)
        newer = publisher.put("a", b"2").durable.result(10)
        with pytest.raises(ps.Fenced):
            first.wait({partition: 1 << 62}, timeout=10)
        other.wait(newer, 10)
        second.wait({partition: newer["model", 0]}, timeout=10)
        second.close(10)
        first.close(10)
        assert state_of(changelogs, record_of(client, "model")) == {b"a": b"2"}


def test_only_what_is_durable_is_written_back(client: ps.Client) -> None:
    client.create_topic("model")
    with client.replica("model") as replica, pytest.raises(ps.InvalidEvent, match="durable"):
        replica.write_back(FakeChangelogs())
