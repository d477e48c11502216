"""Fault cases B, end to end: a name is refused at publish, or makes the full round trip; two names never meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import paramstream as ps
from paramstream.cli.main import main
from paramstream.events.limits import MAX_NAME_BYTES
from reference.weights import check_weights

ONE = np.array([1.0], np.float32)

TRAVEL = [
    "__metadata__", "__meta", "__paramstream__", "topic/model", "base", ".", "..", "../x", "/etc/passwd", " ", "\n", "\0",
    "ü.weight", "a.b", "x" * MAX_NAME_BYTES,
]  # fmt: skip
"""Names of tensors that are like any other: reserved by file formats and tables, of paths, with odd characters."""

IMPOSSIBLE = ["", "x" * (MAX_NAME_BYTES + 1), "ü" * (MAX_NAME_BYTES // 2 + 1), "\ud800"]
"""Empty, over the limit in bytes, no UTF-8."""


@pytest.fixture
def publisher(client: ps.Client) -> ps.Publisher:
    client.create_topic("model")
    return client.publisher("model", producer="trainer")


def test_reserved_names_of_tensors_make_the_full_round_trip_B03(tmp_path: Path) -> None:
    arrays = {name: np.array([number], np.int64) for number, name in enumerate(TRAVEL)}
    log = f"file:{tmp_path / 'log'}"
    with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        publisher = client.publisher("model", producer="trainer")
        publisher.publish_weights(arrays, version=1).durable.result()
        with client.replica("model", arrays="numpy") as replica:
            check_weights(replica.weights(), arrays, 1)
    with ps.restore(log, "model", arrays="numpy") as restored:
        check_weights(restored.weights(), arrays, 1)


def test_a_name_that_a_file_cannot_have_is_refused_before_the_file_is_written_B03(
    broker: ps.Broker, publisher: ps.Publisher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher.publish_weights({"__metadata__": ONE, "w": ONE}, version=1).durable.result()
    out = tmp_path / "out.safetensors"
    assert main(["restore", "--connect", broker.endpoint, "--topic", "model", "--out", str(out)]) == 1
    assert "'__metadata__'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_names_of_tensors_are_refused_at_publish_B03(
    client: ps.Client, publisher: ps.Publisher, name: str
) -> None:
    with client.subscribe("model") as events:
        with pytest.raises(ps.InvalidEvent, match="tensor name") as refused:
            publisher.publish_weights({"good": ONE, name: ONE}, version=1)
        assert (refused.value.topic, refused.value.version) == ("model", 1)
        publisher.put("key", b"value").durable.result()
        assert events.next(timeout=5.0).kind == "put", "nothing of the version was published"
    assert client.versions("model") == []


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_names_are_refused_wherever_a_name_is_given_B03(
    client: ps.Client, publisher: ps.Publisher, name: str
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: client.create_topic(name),
        lambda: client.create_table("model", name, 4),
        lambda: client.publisher("model", producer=name),
        lambda: client.replica("model", name=name or "\ud801"),
    ]
    for call in calls:
        with pytest.raises(ps.InvalidEvent, match="name"):
            call()
    for key in (b"", b"x" * 4097, "\ud800"):
        with pytest.raises(ps.InvalidEvent, match="key"):
            publisher.put(key, b"value")


@pytest.mark.parametrize("name", [".", "..", "../x", "a/b", "topic/model", "x" * MAX_NAME_BYTES, "ü", "\0"])
def test_names_of_topics_producers_and_replicas_never_meet_B03(client: ps.Client, name: str) -> None:
    """The same odd name for all of them, and a plain neighbour that a path or a prefix could take it for."""
    for topic in (name, "model"):
        client.create_topic(topic)
        client.create_table(topic, name, dim=1)
        publisher = client.publisher(topic, producer=name)
        publisher.put(name.encode(), topic.encode()).accepted.result()
        publisher.publish_rows(name, [1], np.array([[1.0]], np.float32)).accepted.result()
        publisher.publish_weights({name: ONE}, version=1).accepted.result()
    with client.replica([name, "model"], name=name, arrays="numpy") as replica:
        for topic in (name, "model"):
            assert replica.get(name.encode(), topic=topic) == topic.encode()
            check_weights(replica.weights(topic=topic), {name: ONE}, 1)
        assert {topic.name for topic in client.topics()} == {name, "model"}


@pytest.mark.parametrize("name", ["__meta", "__x", "__"])
def test_names_of_control_topics_are_refused_B03(client: ps.Client, name: str) -> None:
    with pytest.raises(ps.InvalidEvent, match="reserved"):
        client.create_topic(name)
    with pytest.raises(ps.UnknownTopic, match=name):
        client.publisher(name, producer="trainer")
    with pytest.raises(ps.UnknownTopic, match=name):
        client.replica(name)


def test_names_that_flatten_to_one_are_refused_with_both_origins_B04(
    client: ps.Client, publisher: ps.Publisher
) -> None:
    with client.subscribe("model") as events:
        with pytest.raises(ps.InvalidEvent) as refused:
            publisher.publish_weights({"a": {"b": ONE}, "a.b": 2 * ONE}, version=1)
        assert "['a']['b'] and ['a.b']" in str(refused.value)
        assert (refused.value.item, refused.value.topic, refused.value.version) == ("a.b", "model", 1)
        publisher.publish_weights({"a": {"b": ONE}}, version=2).durable.result()
        assert events.next(timeout=5.0).version == 2, "nothing of the first was published"
    with client.replica("model", arrays="numpy") as replica:
        check_weights(replica.weights(), {"a.b": ONE}, 2)


def test_a_module_whose_state_has_nested_names_keeps_them_B04(client: ps.Client, publisher: ps.Publisher) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    publisher.publish_weights(module, version=1).durable.result()
    with client.replica("model", arrays="torch") as replica:
        check_weights(replica.weights(), module.state_dict(), 1)


def test_one_wrapped_name_of_three_keeps_the_version_out_until_it_is_mapped_B07(
    client: ps.Client, publisher: ps.Publisher
) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("w", "a", "b"):
                self.register_buffer(name, torch.zeros(2))

        def values(self) -> list[float]:
            return [self.get_buffer(name)[0].item() for name in ("w", "a", "b")]

    def weights(value: float, wrapped: str = "") -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
        return {name: np.full(2, value, np.float32) for name in (f"{wrapped}w", "a", "b")}

    prefix = "module._orig_mod."
    publisher.publish_weights(weights(1.0), version=1).accepted.result()
    with client.replica("model") as replica:
        module, mapped = Net(), Net()
        bound = replica.bind(module)
        replica.wait(publisher.publish_weights(weights(2.0, prefix), version=2, schema="replace"))
        assert (bound.version, module.values()) == (1, [1.0] * 3)
        assert bound.report is not None
        assert (bound.report.applied, bound.report.unmatched, bound.report.missing) == (0, (f"{prefix}w",), ("w",))
        with pytest.raises(ps.SchemaMismatch, match=r"the version lacks: w; the module lacks: module\._orig_mod\.w"):
            replica.bind(Net())
        renamed = replica.bind(mapped, rename={f"{prefix}w": "w"})
        assert str(renamed.report) == "3 of 3 applied" and mapped.values() == [2.0] * 3
