"""A replica's snapshots: whole while it moves, of durable positions only, proved when they are read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from feeding.fakes import FakeBroker
from feeding.world import World
from paramstream.consistency.vector import VersionVector
from paramstream.consumers.scope import Scope
from paramstream.consumers.snapshots import taking, weights_file
from paramstream.consumers.snapshots.asked import SnapshotInfo
from paramstream.consumers.snapshots.entry_pages import encode_page
from paramstream.consumers.snapshots.reading import Snapshot, open_snapshot
from paramstream.consumers.snapshots.seeding import Seed
from paramstream.consumers.versions import Sealed
from paramstream.errors import (
    CorruptLog,
    EventLost,
    InvalidEvent,
    LogTruncated,
    NotDurable,
    ParamstreamTimeout,
    UnknownTopic,
)
from paramstream.events.codec import position_of
from paramstream.tiers.entries import Entry

W = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "snapshots")
    yield made
    for replica in made.replicas:
        replica.close()


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5.0
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_snapshot_and_the_log_behind_it_give_what_the_replica_serves(world: World) -> None:
    state, weights = world.broker.state, world.broker.weights
    state.put(b"kept", b"1")
    state.put(b"gone", b"2")
    state.put(b"short", b"3", ttl_ns=10**15)
    weights.version(7, {"w": W}, tied={"head": "w"})
    replica = world.replica()
    world.settle()
    info = world.snapshot(replica)
    assert (info.topic, info.version) == ("model", 7)
    state.delete(b"gone")
    state.put(b"new", b"4")
    weights.version(8, {"w": W + 1}, tied={"head": "w"})
    world.settle()
    expected, vector = replica.digest(), replica.vector
    again = world.restarted()
    assert again.digest() == expected and again.vector == vector
    assert (again.get("kept"), again.get("gone"), again.get("new")) == (b"1", None, b"4")
    assert (again.weights()["head"] == W + 1).all() and again.weights(7)["w"].tolist() == W.tolist()


def test_what_is_read_again_begins_behind_the_floor(world: World) -> None:
    first = world.broker.state.put(b"a", b"1")
    replica = world.replica()
    world.settle()
    info = world.snapshot(replica)
    assert info.floor["model", 0] == world.broker.state.position
    assert first is not None
    world.broker.starts = dict.fromkeys(world.broker.writers, world.broker.state.position)
    world.broker.starts[world.broker.weights.partition] = 0
    assert world.restarted().get("a") == b"1"


def test_what_the_state_rests_on_is_kept_though_it_is_never_read_again(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    state = world.broker.state
    elsewhere = world.broker.writers[77, 1].put(b"b", b"1")
    state.put(b"a", b"1", observed={(77, 1): position_of(elsewhere)})
    try:
        replica = world.replica(partitions=[0])
        world.settle()
        world.snapshot(replica)
        vector = replica.vector
        assert vector["model", 1] == position_of(elsewhere)
        assert world.restarted(partitions=[0]).vector == vector
    finally:
        for each in world.replicas:
            each.close()


def test_what_moves_while_it_is_copied_is_whole_from_the_ceiling_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "KEYS_AT_ONCE", 1)
    monkeypatch.setattr(taking, "PAGE_BYTES", 1)
    state = world.broker.state
    for number in range(20):
        state.put(b"%02d" % number, b"old")
    replica = world.replica()
    world.settle()
    moved = iter(range(20))

    def encode_while_it_moves(page: list[tuple[bytes, Entry]]) -> list[bytes | memoryview]:
        number = next(moved)
        state.put(b"%02d" % (19 - number), b"new")
        state.delete(b"%02d" % ((number + 7) % 20))
        state.put(b"extra-%d" % number, b"x")
        world.settle()
        return encode_page(page)

    monkeypatch.setattr(taking, "encode_page", encode_while_it_moves)
    info = world.snapshot(replica)
    assert info.floor["model", 0] < info.ceiling["model", 0]
    seed = Seed.of_snapshot(open_snapshot(world.root, "model"), [0])
    assert (seed.starts[state.partition], seed.targets[state.partition]) == (
        info.floor["model", 0],
        info.ceiling["model", 0],
    )
    expected = replica.digest()
    assert world.restarted().digest() == expected


def test_a_copy_counts_only_once_its_ceiling_is_durable(world: World) -> None:
    world.broker.state.put(b"a", b"1")
    replica = world.replica()
    world.settle(durable=False)
    with pytest.raises(ParamstreamTimeout, match="durable"):
        world.snapshot(replica, timeout=0.1)
    with pytest.raises(UnknownTopic):
        open_snapshot(world.root, "model")
    world.settle()
    assert world.snapshot(replica).ceiling["model", 0] == world.broker.state.position


def test_a_copy_with_what_was_undone_is_thrown_away_and_begun_again(world: World) -> None:
    state = world.broker.state
    state.put(b"a", b"stays")
    replica = world.replica()
    world.settle()
    end = state.position
    state.put(b"a", b"lost")
    world.broker.settle()
    assert replica.get("a") == b"lost"
    made: list[SnapshotInfo] = []
    thread = threading.Thread(target=lambda: made.append(world.snapshot(replica)))
    thread.start()
    until(lambda: any(world.root.rglob("state-0-0000.safetensors")))
    state.open_epoch(end=end)
    state.put(b"b", b"after")
    world.settle()
    thread.join(5)
    (info,) = made
    assert dict(Snapshot(info.path).entries(0))[b"a"].value == b"stays"
    assert world.restarted().digest() == replica_digest(world)


def replica_digest(world: World) -> str:
    world.broker.follows.clear()
    return world.replica().digest()


def test_values_are_those_of_the_moment_whatever_is_published_meanwhile_L04(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.broker.weights.version(1, {"w": np.ones(4, np.float32), "step": np.array(1.0, np.float32)})
    replica = world.replica()
    world.settle()
    pieces_of = weights_file.pieces_of

    def slowly(sealed: Sealed, topic: str) -> Iterator[bytes | memoryview]:
        pieces = pieces_of(sealed, topic)
        yield next(pieces)
        for version in (2, 3, 4):
            array = np.full(4, version, np.float32)
            world.broker.weights.version(version, {"w": array, "step": np.array(float(version), np.float32)})
            world.settle()
        yield from pieces

    monkeypatch.setattr(weights_file, "pieces_of", slowly)
    info = world.snapshot(replica)
    assert replica.weights().version == 4
    loaded = safetensors.numpy.load_file(info.path / "weights-1.safetensors")
    assert loaded["w"].tolist() == [1.0] * 4 and loaded["step"] == 1.0


def test_other_tools_read_the_weights_by_their_own_names(world: World) -> None:
    arrays: dict[str, Any] = {
        "__metadata__": W,
        "__metadata___": W + 1,
        "scalar": np.array(3.0, np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "half": np.arange(3).astype(ml_dtypes.bfloat16),
        "eighth": np.arange(3).astype(ml_dtypes.float8_e4m3fn),
        "complex": np.array([1 + 2j], np.complex128),
    }
    world.broker.weights.version(1, arrays, tied={"twin": "scalar"})
    replica = world.replica()
    world.settle()
    info = world.snapshot(replica)
    loaded = safetensors.torch.load_file(info.path / "weights-1.safetensors")
    assert loaded.keys() == {*arrays} - {"__metadata__"} | {"__metadata____"}
    assert loaded["half"].dtype == torch.bfloat16 and loaded["scalar"].shape == () and loaded["empty"].shape == (0, 4)
    again = world.restarted().weights()
    assert again.digest == replica_weights_digest(world) and again["twin"] == 3.0
    assert again["complex"].dtype == np.complex128 and again["eighth"].dtype == ml_dtypes.float8_e4m3fn
    assert again["__metadata__"].tolist() == W.tolist()


def replica_weights_digest(world: World) -> str:
    world.broker.follows.clear()
    return world.replica().weights().digest


@pytest.mark.parametrize("name", ["manifest.json", "weights-1.safetensors", "state-0-0000.safetensors"])
def test_a_flipped_bit_in_any_file_is_named_and_the_snapshot_before_is_used_K03(world: World, name: str) -> None:
    state = world.broker.state
    state.put(b"a", b"1")
    world.broker.weights.version(1, {"w": W})
    replica = world.replica()
    world.settle()
    before = world.snapshot(replica)
    state.put(b"b", b"2")
    world.settle()
    newest = world.snapshot(replica)
    expected = replica.digest()
    path = newest.path / name
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        found = open_snapshot(world.root, "model")
        assert found.path == before.path, at
        assert [str(path) in str(error) for error in found.damaged] == [True]
    assert world.restarted().digest() == expected
    (before.path / name).unlink()
    with pytest.raises(CorruptLog, match=name):
        world.restarted()


def test_a_latest_that_is_damaged_or_gone_hides_nothing(world: World) -> None:
    replica = world.replica()
    world.settle()
    info = world.snapshot(replica)
    latest = info.path.parent / "latest"
    for content in (b"\xff\xfe", b"snapshot-99999999\n", b"../../etc", b""):
        latest.write_bytes(content)
        assert open_snapshot(world.root, "model").path == info.path
    latest.unlink()
    assert open_snapshot(world.root, "model").path == info.path


def test_a_pickle_in_place_of_any_file_is_refused_as_malformed_O01(world: World, tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    world.broker.state.put(b"a", b"1")
    world.broker.weights.version(1, {"w": W})
    replica = world.replica()
    world.settle()
    info = world.snapshot(replica)
    poison = b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR."
    for path in sorted(info.path.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(poison)
        with pytest.raises(CorruptLog, match=path.name):
            open_snapshot(world.root, "model")
        path.write_bytes(whole)
    assert not canary.exists()


def test_older_snapshots_go_and_as_many_as_asked_for_stay(world: World) -> None:
    replica = world.replica()
    world.settle()
    made = [world.snapshot(replica).path.name for _ in range(4)]
    folder = next(world.root.iterdir())
    assert sorted(path.name for path in folder.glob("snapshot-*")) == made[-2:]
    (info,) = replica.snapshot(world.root, keep=1)
    assert [path.name for path in folder.glob("snapshot-*")] == [info.path.name]
    assert (folder / "latest").read_text().strip() == info.path.name


def test_a_named_replica_resumes_its_own_state_and_begins_at_the_head_the_first_time(world: World) -> None:
    world.broker.state.put(b"a", b"1")
    first = world.replica("resume", name="r", snapshot_dir=world.root)
    world.settle()
    assert first.get("a") == b"1"
    first.snapshot()
    world.broker.state.put(b"a", b"2")
    world.settle()
    at = world.broker.state.position
    again = world.restarted("resume", name="r", snapshot_dir=world.root)
    assert again.get("a") == b"2" and again.vector["model", 0] == at


def test_a_start_that_cannot_be_is_refused(world: World) -> None:
    for start, options in (
        ("resume", {}),
        ("resume", {"name": "r"}),
        ("resume", {"snapshot_dir": world.root}),
        ("snapshot:", {}),
        ("yesterday", {}),
    ):
        with pytest.raises(InvalidEvent):
            world.replica(start, **options)
    with pytest.raises(UnknownTopic):
        world.replica(f"snapshot:{world.root}")
    replica = world.replica()
    with pytest.raises(InvalidEvent, match="folder"):
        replica.snapshot()


def test_where_the_log_no_longer_goes_on_from_the_snapshot_the_range_is_named_I04(world: World) -> None:
    state = world.broker.state
    state.put(b"a", b"1")
    replica = world.replica()
    world.settle()
    info = world.snapshot(replica)
    for _ in range(5):
        state.put(b"a", b"2")
    world.settle()
    world.broker.starts[state.partition] = state.position - 1
    with pytest.raises(LogTruncated) as raised:
        world.restarted()
    assert (raised.value.topic, raised.value.partition, raised.value.position) == ("model", 0, info.floor["model", 0])
    assert "5:1 and up to 5:5" in str(raised.value)


def test_a_snapshot_that_is_ahead_of_the_log_is_refused(world: World) -> None:
    world.broker.state.put(b"a", b"1")
    world.broker.state.put(b"b", b"1")
    replica = world.replica()
    world.settle()
    info = world.snapshot(replica)
    replica.close()
    behind = FakeBroker()
    behind.state.put(b"a", b"1")
    world.broker = behind
    with pytest.raises(EventLost) as raised:
        world.restarted()
    assert raised.value.position == info.ceiling["model", 0]


def test_what_a_broker_lacks_is_called_lost_only_once_it_has_proved_to_be_the_owner(world: World) -> None:
    """One that was taken over, and does not know it yet, lacks what the snapshot and the vector hold: it stands with another one."""
    state = world.broker.state
    state.put(b"a", b"1")
    replica = world.replica()
    world.settle()
    info = world.snapshot(replica)
    world.broker.told_ends = {state.partition: 0}
    assert world.restarted().get("a") == b"1"
    scope = Scope(["model"], world.broker.directory, VersionVector(info.ceiling), None, time.monotonic() + 5.0)
    assert scope.targets[state.partition] == state.position


def test_under_none_a_snapshot_ends_with_its_epoch_and_nothing_is_resumed(tmp_path: Path) -> None:
    world = World(tmp_path, persistence="none")
    world.broker.state.put(b"a", b"1")
    replica = world.replica()
    world.settle()
    world.snapshot(replica)
    try:
        assert world.restarted().get("a") == b"1"
        world.broker.state.open_epoch()
        with pytest.raises(NotDurable):
            world.restarted("resume", name="r", snapshot_dir=tmp_path)
    finally:
        for each in world.replicas:
            each.close()


def test_a_part_that_was_open_at_the_snapshot_is_found_by_the_commit_that_names_it(world: World) -> None:
    weights = world.broker.weights
    weights.version(1, {"w": W})
    frames = weights.version(2, {"w": W + 1})
    commit = weights.log.pop(weights.position)
    weights._order.pop()  # pyright: ignore[reportPrivateUsage]
    weights.position -= 1
    assert commit is frames[-1]
    replica = world.replica()
    world.settle()
    assert replica.weights().version == 1
    world.snapshot(replica)
    weights.place(commit)
    world.settle()
    expected = replica.digest()
    assert world.restarted().digest() == expected and world.replicas[-1].weights().version == 2
