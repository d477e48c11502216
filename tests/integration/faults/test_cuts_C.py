"""Fault cases C, end to end: how a version is tied, fused and cut never changes what it means."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import paramstream as ps
from paramstream.events.digest import tensor_digest, version_digest
from paramstream.events.kinds import Chunk, Commit, Part, PartRef, Segment, TensorSpec
from paramstream.producers import weights as cutting
from paramstream.transport.messages import Refused
from reference.weights import check_weights
from wire.peer import Peer, Writer

F32 = npt.NDArray[np.float32]
CHUNK_NBYTES = [64, 128, 192, 1024, 832 * 1024]
"""One tensor in several chunks; one tensor a chunk; q and kv in one; one chunk for all."""


@pytest.fixture
def publisher(client: ps.Client) -> ps.Publisher:
    client.create_topic("model")
    return client.publisher("model", producer="trainer")


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4, 3)
        self.head = torch.nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def fill(value: float) -> torch.Tensor:
    return torch.full((4, 3), float(value))


def test_tied_tensors_travel_once_and_are_read_under_both_names_C01(client: ps.Client, publisher: ps.Publisher) -> None:
    publisher.publish_weights(Tied(), version=1).accepted.result()
    with client.replica("model", arrays="torch") as replica, client.subscribe("model") as events:
        # Only one of them: the other one follows.
        publisher.publish_weights({"embed.weight": fill(1)}, version=2).accepted.result()
        replica.wait_version(2)
        check_weights(replica.weights(), {"embed.weight": fill(1), "head.weight": fill(1)}, 2)
        # Both, equal, of different memory: accepted, and the bytes go once.
        publisher.publish_weights({"embed.weight": fill(2), "head.weight": fill(2)}, version=3).accepted.result()
        replica.wait_version(3)
        check_weights(replica.weights(), {"embed.weight": fill(2), "head.weight": fill(2)}, 3)
        assert client.versions("model")[-1].bytes == 4 * 3 * 4
        # Both, different: an error that says so, and nothing of it goes.
        with pytest.raises(ps.InvalidEvent, match="tied and disagree") as refused:
            publisher.publish_weights({"embed.weight": fill(3), "head.weight": fill(4)}, version=4)
        assert "'embed.weight'" in str(refused.value) and refused.value.item == "head.weight"
        publisher.publish_weights({"head.weight": fill(5)}, version=5).accepted.result()
        replica.wait_version(5)
        check_weights(replica.weights(), {"embed.weight": fill(5), "head.weight": fill(5)}, 5)
        seen = [events.next(timeout=5.0) for _ in range(9)]
        assert [(e.kind, e.version) for e in seen] == [(k, v) for v in (2, 3, 5) for k in ("chunk", "part", "commit")]


def test_tensors_that_are_untied_go_their_own_ways_C01(client: ps.Client, publisher: ps.Publisher) -> None:
    publisher.publish_weights(Tied(), version=1).accepted.result()
    apart = {"embed.weight": fill(1), "head.weight": fill(2)}
    with client.replica("model", arrays="torch") as replica:
        publisher.publish_weights(apart, version=2, schema="replace").accepted.result()
        replica.wait_version(2)
        check_weights(replica.weights(), apart, 2)
        with pytest.raises(ps.SchemaMismatch, match="missing"):
            publisher.publish_weights({"embed.weight": fill(3)}, version=3)


def layers() -> dict[str, F32]:
    values = np.arange(4 * 8 + 2 * 8 + 8, dtype=np.float32)
    return {
        "q": values[:32].reshape(4, 8),
        "kv": values[32:48].reshape(2, 8),
        "norm": values[48:],
    }


@pytest.mark.parametrize("chunk_nbytes", CHUNK_NBYTES)
def test_a_fused_weight_is_the_same_however_its_halves_are_cut_C03(
    client: ps.Client, publisher: ps.Publisher, monkeypatch: pytest.MonkeyPatch, chunk_nbytes: int
) -> None:
    monkeypatch.setattr(cutting, "MAX_CHUNK_BYTES", chunk_nbytes)
    arrays = layers()
    with client.replica("model", arrays="numpy") as replica, client.subscribe("model") as events:
        publisher.publish_weights(arrays, version=1).accepted.result()
        replica.wait_version(1)
        held = replica.weights()
        check_weights(held, arrays, 1)
        assert np.concatenate([held["q"], held["kv"]]).tolist() == np.arange(48).reshape(6, 8).tolist()
        chunks = 0
        while events.next(timeout=5.0).kind == "chunk":
            chunks += 1
        assert chunks == -(-sum(a.nbytes for a in arrays.values()) // chunk_nbytes)


def spec(name: str, array: F32, chunk: int) -> TensorSpec:
    return TensorSpec(name, "float32", array.shape, tensor_digest(array.tobytes()), array.nbytes, chunk, chunk)


def chunk_of(version: int, arrays: dict[str, F32]) -> tuple[Chunk, list[bytes]]:
    segments = tuple(Segment(name, 0, array.nbytes) for name, array in arrays.items())
    return Chunk(version, segments), [array.tobytes() for array in arrays.values()]


def commit_of(writer: Writer, part: Part, sequence: int) -> Commit:
    return Commit(2, (PartRef("rogue", writer.incarnation, sequence),), version_digest(part.tensors))


def test_a_version_whose_half_never_came_is_not_sealed_C03(
    broker: ps.Broker, client: ps.Client, publisher: ps.Publisher
) -> None:
    arrays = layers()
    publisher.publish_weights(arrays, version=1).accepted.result()
    with client.replica("model", arrays="numpy") as replica, Peer(broker.endpoint) as peer:
        peer.hello()
        writer = peer.join("rogue")
        weights = max(writer.epochs)
        there = writer.send(weights, *chunk_of(2, {"q": arrays["q"], "norm": arrays["norm"]}))
        writer.frame(weights, *chunk_of(2, {"kv": arrays["kv"]}))  # the next sequence, which is never sent
        part = Part(2, (spec("q", arrays["q"], there), spec("norm", arrays["norm"], there), spec("kv", arrays["kv"], there + 1)))  # fmt: skip
        writer.send(weights, commit_of(writer, part, writer.send(weights, part)))
        error = peer.hear(Refused).error.raised()
        assert isinstance(error, ps.EventLost) and error.version == 2 and "'kv'" in str(error)
        check_weights(replica.weights(), arrays, 1)
        assert [each.version for each in client.versions("model")] == [1]
        # Nothing is in the way of the version that comes whole.
        publisher.publish_weights(layers(), version=3).accepted.result()
        replica.wait_version(3)
        check_weights(replica.weights(), layers(), 3)


def test_a_sealed_version_that_lacks_a_half_is_never_shown_C03(
    broker: ps.Broker, client: ps.Client, publisher: ps.Publisher
) -> None:
    """A writer that keeps none of the library's rules says that a chunk holds what it does not."""
    arrays = layers()
    publisher.publish_weights(arrays, version=1).accepted.result()
    with client.replica("model", arrays="numpy") as replica, Peer(broker.endpoint) as peer:
        peer.hello()
        writer = peer.join("rogue")
        weights = max(writer.epochs)
        there = writer.send(weights, *chunk_of(2, {"q": arrays["q"], "norm": arrays["norm"]}))
        part = Part(2, tuple(spec(name, array, there) for name, array in arrays.items()))
        writer.send(weights, commit_of(writer, part, writer.send(weights, part)))
        with pytest.raises(ps.ParamstreamError) as stopped:
            replica.wait_version(2, timeout=10.0)
        assert isinstance(stopped.value, ps.CorruptLog | ps.LogTruncated), stopped.value
        assert (stopped.value.topic, stopped.value.partition) == ("model", 1)
        status = replica.status()
        assert status.stale and list(status.stopped) == [("model", 1)] and status.version == 1
        check_weights(replica.weights(), arrays, 1)


def test_a_tensor_larger_than_any_event_is_cut_and_put_together_again_C06(
    client: ps.Client, publisher: ps.Publisher
) -> None:
    random = np.random.default_rng(6)
    arrays: dict[str, Any] = {f"small.{n}": random.standard_normal(2560).astype(np.float32) for n in range(17)}
    arrays["large"] = random.integers(0, 256, 3 << 20).astype(np.uint8)
    with client.replica("model", arrays="numpy") as replica:
        publisher.publish_weights(arrays, version=1).accepted.result()
        replica.wait_version(1)
        check_weights(replica.weights(), arrays, 1)
