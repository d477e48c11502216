"""Commits of parts over a real broker: rows and KV that a version is shown with, refusals, restarts, entries of one version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import paramstream as ps
from reference.waiting import eventually

Weights = dict[str, npt.NDArray[np.float32]]


@pytest.fixture
def ranks(broker: ps.Broker, client: ps.Client) -> Iterator[list[ps.Publisher]]:
    """Two ranks, each with a connection of its own."""
    client.create_topic("model", partitions=2)
    with ps.connect(broker.endpoint) as one, ps.connect(broker.endpoint) as two:
        yield [one.publisher("model", producer="rank-0"), two.publisher("model", producer="rank-1")]


def part(number: int, version: int) -> Weights:
    return {f"rank{number}.w": np.full(4, version, np.float32)}


def stage(ranks: list[ps.Publisher], version: int) -> list[ps.Receipt]:
    return [
        ps.Receipt.parse(str(rank.publish_weights(part(number, version), version, seal=False)))
        for number, rank in enumerate(ranks)
    ]


def seal(ranks: list[ps.Publisher], version: int) -> ps.Receipt:
    return ranks[0].commit(version, stage(ranks, version))


def shown(replica: ps.Replica) -> set[float]:
    return {float(value) for values in replica.weights().values() for value in values}


def test_parts_are_seen_by_nobody_before_the_commit_and_by_all_after(
    client: ps.Client, ranks: list[ps.Publisher]
) -> None:
    with client.replica("model", arrays="numpy") as replica:
        parts = stage(ranks, 1)
        for receipt in parts:
            replica.wait(receipt)
        with pytest.raises(ps.VersionNotHeld):
            replica.weights()
        assert client.versions("model") == []
        sealed = ranks[1].commit(1, parts)
        replica.wait(sealed)
        assert (replica.weights().version, shown(replica), len(replica.weights())) == (1, {1.0}, 2)
        assert [known.version for known in client.versions("model")] == [1]


def test_the_same_commit_again_gets_the_receipt_of_the_first_time(ranks: list[ps.Publisher]) -> None:
    parts = stage(ranks, 1)
    first = ranks[0].commit(1, parts)
    assert ranks[1].commit(1, parts).positions == first.positions
    assert ranks[0].commit(1, reversed(parts)).positions == first.positions


def test_a_version_of_parts_is_the_same_as_one_published_whole(client: ps.Client, ranks: list[ps.Publisher]) -> None:
    sealed = seal(ranks, 1)
    again = ranks[1].publish_weights({**part(0, 1), **part(1, 1)}, 1)
    assert again.positions == sealed.positions
    with pytest.raises(ps.VersionConflict):
        seal(ranks, 0)
    with pytest.raises(ps.VersionConflict):
        ranks[0].commit(1, [ranks[0].publish_weights({**part(0, 2), **part(1, 2)}, 1, seal=False)])


def test_a_refused_commit_names_what_is_wrong_and_the_parts_can_still_be_committed(
    client: ps.Client, ranks: list[ps.Publisher]
) -> None:
    seal(ranks, 1)
    parts = stage(ranks, 2)
    with pytest.raises(ps.SchemaMismatch, match=r"lacks 'rank1\.w'"):
        ranks[0].commit(2, parts[:1])
    with pytest.raises(ps.InvalidEvent, match=r"'rank-0'.*'rank-1'") as overlap:
        ranks[0].commit(2, [*parts, ranks[1].publish_weights(part(0, 2), 2, seal=False)])
    assert (overlap.value.item, overlap.value.version, overlap.value.topic) == ("rank0.w", 2, "model")
    with pytest.raises(ps.InvalidEvent, match="version 2, not 3"):
        ranks[0].commit(3, parts)
    ranks[0].flush()
    assert ranks[0].commit(2, parts).durable.result()


def test_a_commit_replaces_the_schema_and_rewinds(client: ps.Client, ranks: list[ps.Publisher]) -> None:
    seal(ranks, 7)
    wide = [rank.publish_weights({f"rank{n}.x": np.zeros(9)}, 3, seal=False) for n, rank in enumerate(ranks)]
    with pytest.raises(ps.VersionConflict):
        ranks[0].commit(3, wide, schema="replace")
    with pytest.raises(ps.SchemaMismatch):
        ranks[0].commit(3, wide, rewind=True)
    sealed = ranks[0].commit(3, wide, schema="replace", rewind=True)
    with client.replica("model", arrays="numpy") as replica:
        replica.wait(sealed)
        assert (replica.weights().version, sorted(replica.weights())) == (3, ["rank0.x", "rank1.x"])
    # Sessions that have not heard of the new lineage and schema look again before they refuse.
    assert ranks[1].publish_weights({"rank0.x": np.ones(9), "rank1.x": np.ones(9)}, 4).accepted.result()


def test_a_version_is_shown_with_the_entries_that_its_commit_names(
    client: ps.Client, ranks: list[ps.Publisher]
) -> None:
    with client.replica("model", ordering="pram", arrays="numpy") as replica:
        seen = set[tuple[int, bytes | None]]()
        stop = threading.Event()

        def read() -> None:
            while not stop.wait(0.0005):
                # The version first: the entry that is read after it is that of its commit, or a later one.
                try:
                    version = replica.weights().version
                except ps.VersionNotHeld:
                    continue
                seen.add((version, replica.get("scale")))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for version in range(1, 30):
                entry = ranks[1].put("scale", b"%d" % version)
                parts = stage(ranks, version)
                replica.wait(ranks[0].commit(version, [*parts, ps.Receipt.parse(str(entry))]))
        finally:
            stop.set()
            reader.join(10)
        assert seen and all(value is not None and int(value) >= version for version, value in seen)


def test_a_vector_that_came_as_text_names_entries_too(client: ps.Client, ranks: list[ps.Publisher]) -> None:
    vector = ps.VersionVector.parse(str(ranks[1].put_many({f"k{n}": b"v" for n in range(20)}).vector))
    with client.replica("model", arrays="numpy") as replica:
        replica.wait(ranks[0].commit(1, [*stage(ranks, 1), vector]))
        assert replica.get_many([f"k{n}" for n in range(20)]) == [b"v"] * 20


def test_what_was_never_sequenced_cannot_be_named(ranks: list[ps.Publisher]) -> None:
    (at,) = ranks[1].put("k", b"v").positions.items()
    beyond = ps.VersionVector({at[0]: at[1] + 1000})
    with pytest.raises(ps.EventLost):
        ranks[0].commit(1, [*stage(ranks, 1), beyond])


def test_parts_that_outlive_the_broker_are_committed_and_what_it_lost_is_named(tmp_path: Path) -> None:
    endpoint, log = f"ipc://{tmp_path / 'broker'}", f"file:{tmp_path / 'log'}"
    with ps.Broker(bind=endpoint, log=log), ps.connect(endpoint) as client:
        client.create_topic("model")
        rank = client.publisher("model", producer="rank-0")
        staged = rank.publish_weights(part(0, 1), 1, seal=False)
        staged.durable.result()
        text = str(staged)
        lost = ps.Receipt.parse(text.rsplit(";", 1)[0] + ";99")
    with ps.Broker(bind=endpoint, log=log), ps.connect(endpoint) as client:
        committer = client.publisher("model", producer="committer")
        with pytest.raises(ps.EventLost, match="part 99 of producer 'rank-0'") as caught:
            committer.commit(1, [lost])
        assert caught.value.item is not None and caught.value.item.startswith("rank-0/")
        with client.replica("model", arrays="numpy") as replica:
            replica.wait(committer.commit(1, [ps.Receipt.parse(text)]))
            assert shown(replica) == {1.0}


def test_an_attached_receipt_follows_its_events_through_a_restart(tmp_path: Path) -> None:
    endpoint, log = f"ipc://{tmp_path / 'broker'}", f"file:{tmp_path / 'log'}"
    with ps.Broker(bind=endpoint, log=log), ps.connect(endpoint) as client:
        client.create_topic("model")
        text = str(client.publisher("model", producer="rank-0").publish_weights(part(0, 1), 1, seal=False))
        receipt = client.attach(ps.Receipt.parse(text))
        assert receipt.durable.result(10) == receipt.vector and receipt.outcome == "durable"
        assert client.attach(receipt) is receipt
    watching = ps.Receipt.parse(text)
    with ps.Broker(bind=endpoint, log=log), ps.connect(endpoint) as client:
        assert client.attach(watching).durable.result(10)
        gone = ps.Receipt.parse(text.replace("model", "other"))
        with pytest.raises(ps.UnknownTopic):
            client.attach(gone)


def test_an_entry_for_a_sealed_version_is_served_beside_that_very_commit_only(
    client: ps.Client, ranks: list[ps.Publisher]
) -> None:
    with client.replica("model", arrays="numpy") as replica:
        seal(ranks, 5)
        replica.wait(ranks[1].put_many({"cache": b"of 5", "other": b"of 5"}, valid_for=5))
        assert replica.get_many(["cache", "other"]) == [b"of 5", b"of 5"]
        replica.wait(seal(ranks, 6))
        assert replica.get("cache") is None
        replica.wait(ranks[0].commit(5, stage(ranks, 5), rewind=True))
        assert (replica.weights().version, replica.get("cache")) == (5, None)
        # The number stands for the new lineage's commit now.
        replica.wait(ranks[1].put("cache", b"of the second 5", valid_for=5))
        assert replica.get("cache") == b"of the second 5"
        replica.wait(ranks[1].put("cache", b"of 6", valid_for=6))
        assert replica.get("cache") is None


def test_an_entry_for_a_version_to_come_is_served_beside_a_commit_that_names_it_only(
    client: ps.Client, ranks: list[ps.Publisher]
) -> None:
    with client.replica("model", arrays="numpy") as replica:
        named = ranks[1].put("cache", b"of 5", valid_for=5)
        replica.wait(named)
        assert replica.get("cache") is None
        replica.wait(ranks[0].commit(5, [*stage(ranks, 5), named]))
        assert replica.get("cache") == b"of 5"
        replica.wait(seal(ranks, 6))
        assert replica.get("cache") is None
        # Sealed again under the same number by a commit that does not name the entry: the entry is of another 5.
        replica.wait(ranks[0].commit(5, stage(ranks, 5), rewind=True))
        assert (replica.weights().version, replica.get("cache")) == (5, None)


def test_a_restored_version_has_the_entries_that_are_valid_for_it(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        rank = client.publisher("model", producer="rank-0")
        for version in (1, 2):
            entry = rank.put(f"cache {version}", b"%d" % version, valid_for=version)
            rank.commit(version, [rank.publish_weights(part(0, version), version, seal=False), entry])
        rank.flush()
    for version in (1, 2):
        with ps.restore(log, "model", at=version, arrays="numpy") as restored:
            assert restored.weights().version == version
            expected = [b"%d" % version if n == version else None for n in (1, 2)]
            assert restored.get_many(["cache 1", "cache 2"]) == expected


def test_a_version_of_ranks_that_wrote_entries_of_their_own_is_restored(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        ranks = [client.publisher("model", producer=f"rank-{number}") for number in range(3)]
        for version in (1, 2):
            for number, rank in enumerate(ranks):
                rank.put(f"rank {number}", b"%d" % version)
            first = ranks[0].publish_weights(part(0, version), version, seal=False)
            first.accepted.result()
            # Of a rank whose part no commit will name, between the parts of those that are.
            ranks[2].publish_weights(part(2, version), version + 5, seal=False).accepted.result()
            ranks[1].commit(version, [first, ranks[1].publish_weights(part(1, version), version, seal=False)])
            for rank in ranks:
                rank.flush()
    with ps.restore(log, "model", at=1, arrays="numpy") as restored:
        assert (restored.weights().version, shown(restored)) == (1, {1.0})
        assert restored.get_many([f"rank {n}" for n in range(3)]) == [b"1"] * 3


def test_what_nobody_commits_ends_with_the_next_commit_and_gives_its_memory_back(
    client: ps.Client, ranks: list[ps.Publisher]
) -> None:
    with ps.TieredStore() as store, client.replica("model", store=store, arrays="numpy") as replica:
        replica.wait(seal(ranks, 1))
        version_nbytes = store.usage().dense_bytes
        abandoned = [
            rank.publish_weights({f"rank{n}.w": np.ones(4, np.float32)}, 2, seal=False) for n, rank in enumerate(ranks)
        ]
        for receipt in abandoned:
            replica.wait(receipt)
        assert store.usage().staging_bytes + store.usage().dense_bytes > version_nbytes
        done = seal(ranks, 2)
        replica.wait(done)
        done.durable.result()
        eventually(lambda: (store.usage().staging_bytes, store.usage().dense_bytes) == (0, 2 * version_nbytes))
        with pytest.raises(ps.EventLost):
            ranks[0].commit(3, [ranks[0].publish_weights(part(0, 3), 3, seal=False), *_as_version(abandoned[1:], 3)])


def _as_version(receipts: list[ps.Receipt], version: int) -> list[ps.Receipt]:
    """Texts of receipts with another version in them: what a committer that is mistaken might name."""
    texts = [str(receipt).split(";") for receipt in receipts]
    return [ps.Receipt.parse(";".join([*fields[:3], str(version), *fields[4:]])) for fields in texts]
