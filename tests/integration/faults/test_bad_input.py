"""Bad input is refused with a typed error that names what it is about, before a byte leaves, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import paramstream as ps
from reference.weights import check_weights

GOOD = {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float64)}


@pytest.fixture
def publisher(client: ps.Client) -> ps.Publisher:
    client.create_topic("model")
    return client.publisher("model", producer="trainer")


@pytest.fixture
def untouched(client: ps.Client, publisher: ps.Publisher) -> Iterator[None]:
    """Fails a test that has published anything."""
    with client.subscribe("model") as events:
        yield
        publisher.put("the end", b"").durable.result()
        assert events.next(timeout=5.0).items == ((b"the end", b"", None),)
    assert client.versions("model") == []


UNSUPPORTED: dict[str, Callable[[], Any]] = {
    "object": lambda: np.array([None]),
    "str": lambda: np.array(["a"]),
    "bytes": lambda: np.array([b"a"]),
    "datetime": lambda: np.array(["2026-01-01"], "datetime64[s]"),
    "struct": lambda: np.zeros(1, [("a", "f4")]),
    "longdouble": lambda: np.zeros(1, np.longdouble),
    "int4": lambda: np.zeros(1, ml_dtypes.int4),
    "list": lambda: [1.0, 2.0],
    "float": lambda: 1.0,
    "None": lambda: None,
    "buffer": lambda: b"1234",
    "sparse": lambda: torch.ones(2, 2).to_sparse(),
    "meta": lambda: torch.ones(2, device="meta"),
    "complex32": lambda: torch.zeros(2, dtype=torch.complex32),
    "33 dimensions": lambda: torch.zeros([1] * 33),
}


@pytest.mark.filterwarnings("ignore:.*(ComplexHalf|parse).*")  # torch warns that these are young
@pytest.mark.parametrize("what", UNSUPPORTED)
@pytest.mark.usefixtures("untouched")
def test_what_is_no_dense_array_of_a_known_dtype_is_refused_by_name(publisher: ps.Publisher, what: str) -> None:
    with pytest.raises(ps.InvalidEvent) as refused:
        publisher.publish_weights({**GOOD, "layer": {"bad": UNSUPPORTED[what]()}}, version=1)
    assert (refused.value.item, refused.value.topic, refused.value.version) == ("layer.bad", "model", 1)


@pytest.mark.parametrize("source", [None, 1, [], "weights", {}, {"a": {}}, {1: np.ones(1)}, torch.ones(1)])
@pytest.mark.usefixtures("untouched")
def test_what_is_no_set_of_weights_is_refused(publisher: ps.Publisher, source: Any) -> None:
    with pytest.raises(ps.InvalidEvent) as refused:
        publisher.publish_weights(source, version=1)
    assert (refused.value.topic, refused.value.version) == ("model", 1)


@pytest.mark.parametrize("version", [-1, 1 << 63, 1.0, "1", None, True])
@pytest.mark.usefixtures("untouched")
def test_what_is_no_version_is_refused(publisher: ps.Publisher, version: Any) -> None:
    with pytest.raises(ps.InvalidEvent, match="version"):
        publisher.publish_weights(GOOD, version=version)


@pytest.mark.usefixtures("untouched")
def test_deltas_and_unknown_choices_are_refused(publisher: ps.Publisher) -> None:
    calls: list[Callable[[], object]] = [
        lambda: publisher.publish_weights(GOOD, version=1, mode="delta"),
        lambda: publisher.publish_weights(GOOD, version=1, mode="half"),  # type: ignore[arg-type]
        lambda: publisher.publish_weights(GOOD, version=1, schema="any"),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(ps.InvalidEvent):
            call()


CONTRADICTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "another shape": ({**GOOD, "w": np.ones((3, 2), np.float32)}, ("(3, 2)", "(2, 3)")),
    "another dtype": ({**GOOD, "w": np.ones((2, 3), np.float64)}, ("float64", "float32")),
    "a name more": ({**GOOD, "x": np.ones(1)}, ("'x'",)),
    "a name less": ({"w": GOOD["w"]}, ("'b'",)),
    "an empty placeholder": ({**GOOD, "w": np.empty(0, np.float32)}, ("(0,)", "(2, 3)")),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
@pytest.mark.parametrize("how", ["the same session", "another session", "a session that joined before the schema"])
def test_a_set_that_contradicts_the_schema_is_refused_unless_it_replaces_it(
    client: ps.Client, publisher: ps.Publisher, what: str, how: str
) -> None:
    arrays, says = CONTRADICTIONS[what]
    writer = client.publisher("model", producer="other") if how == "a session that joined before the schema" else None
    publisher.publish_weights(GOOD, version=1).accepted.result()
    writer = writer or (publisher if how == "the same session" else client.publisher("model", producer="other"))
    with client.replica("model", arrays="numpy") as replica:
        with pytest.raises(ps.SchemaMismatch) as refused:
            writer.publish_weights(arrays, version=2).accepted.result()
        assert all(each in str(refused.value) for each in says)
        assert (refused.value.topic, refused.value.version) == ("model", 2)
        check_weights(replica.weights(), GOOD, 1)
        writer.publish_weights(arrays, version=2, schema="replace").accepted.result()
        replica.wait_version(2)
        check_weights(replica.weights(), arrays, 2)


def test_a_version_that_is_sealed_already_or_goes_back_unasked_is_refused(
    client: ps.Client, publisher: ps.Publisher
) -> None:
    first, other = {"w": np.array([1])}, {"w": np.array([2])}
    sealed = publisher.publish_weights(first, version=5)
    sealed.accepted.result()
    with client.replica("model", arrays="numpy") as replica:
        # With the same values it is the same version, whoever says so.
        for writer in (publisher, client.publisher("model", producer="other")):
            again = writer.publish_weights(first, version=5)
            assert again.accepted.result()["model", 1] == sealed.accepted.result()["model", 1]
        for writer in (publisher, client.publisher("model", producer="third")):
            for version, arrays in ((5, other), (4, first), (0, other)):
                with pytest.raises(ps.VersionConflict) as refused:
                    writer.publish_weights(arrays, version=version).accepted.result()
                assert (refused.value.topic, refused.value.version) == ("model", version)
        assert [each.version for each in client.versions("model")] == [5]
        # Asked for, it goes back; what was higher is superseded, and its number can be had again.
        publisher.publish_weights(other, version=3, rewind=True).accepted.result()
        replica.wait(publisher.publish_weights(first, version=4))
        check_weights(replica.weights(), first, 4)
        with pytest.raises(ps.VersionConflict):
            publisher.publish_weights(first, version=3)


def test_a_version_that_another_session_sealed_meanwhile_is_refused_by_the_broker(
    client: ps.Client, publisher: ps.Publisher
) -> None:
    """What only the broker knows comes with the receipt."""
    late = client.publisher("model", producer="late")
    late.put("joined", b"").accepted.result()
    publisher.publish_weights({"w": np.array([1])}, version=2).accepted.result()
    for version in (1, 2):
        receipt = late.publish_weights({"w": np.array([9])}, version=version)
        with pytest.raises(ps.VersionConflict) as refused:
            receipt.accepted.result()
        assert receipt.outcome == "refused"
        assert (refused.value.topic, refused.value.version) == ("model", version)
    same = late.publish_weights({"w": np.array([1])}, version=2)
    assert same.accepted.result()["model", 1] == client.replica("model").weights().vector["model", 1]
    assert late.publish_weights({"w": np.array([3])}, version=3).durable.result()


def test_an_unknown_topic_is_named_with_what_to_do(client: ps.Client, publisher: ps.Publisher) -> None:
    calls: list[Callable[[], object]] = [
        lambda: client.publisher("nothing", producer="trainer"),
        lambda: client.replica("nothing"),
        lambda: client.replica(["model", "nothing"]),
        lambda: client.subscribe("nothing"),
        lambda: client.versions("nothing"),
        lambda: client.replicas("nothing"),
        lambda: client.delete_topic("nothing"),
        lambda: client.create_table("nothing", "t", 4),
        lambda: publisher.observe(ps.VersionVector({("nothing", 0): 1})),
    ]
    for call in calls:
        with pytest.raises(ps.UnknownTopic) as unknown:
            call()
        assert unknown.value.topic == "nothing" and "'nothing'" in str(unknown.value)


@pytest.mark.parametrize(
    "entry", [(("model", -1), 5), (("model", 0), -1), (("model", 1 << 32), 5), (("model", 0), 1 << 64), (("model", 0), 1.5), ("model", 5)]
)  # fmt: skip
def test_a_vector_with_what_is_no_entry_is_refused_where_it_comes_in(
    broker: ps.Broker, client: ps.Client, publisher: ps.Publisher, entry: Any
) -> None:
    vector = ps.VersionVector(dict([entry]))
    publisher.put("k", b"v").durable.result()
    with client.replica("model") as replica:
        calls: list[Callable[[], object]] = [
            lambda: publisher.observe(vector),
            lambda: replica.wait(vector, 5.0),
            lambda: client.replica("model", start=vector),
            lambda: client.subscribe("model", start=vector),
            lambda: ps.restore(broker.endpoint, "model", at=vector),
        ]
        for call in calls:
            with pytest.raises(ps.InvalidEvent, match="not a version vector entry"):
                call()
    publisher.put("k", b"goes on").durable.result()


@pytest.mark.parametrize(
    "settings",
    [
        {"partitions": 0}, {"partitions": 1025}, {"partitions": -1}, {"persistence": "durable"}, {"persistence": ""},
        {"retain_versions": 0}, {"retain_versions": -1}, {"partitions": 2.0}, {"partitions": "2"}, {"partitions": True},
        {"retain_versions": 1.5}, {"persistence": None},
    ],
)  # fmt: skip
def test_impossible_settings_of_a_topic_are_refused(client: ps.Client, settings: dict[str, Any]) -> None:
    with pytest.raises(ps.InvalidEvent) as refused:
        client.create_topic("model", **settings)
    assert refused.value.topic == "model"
    assert client.topics() == []


def test_a_topic_that_exists_with_other_settings_is_named(client: ps.Client, publisher: ps.Publisher) -> None:
    assert client.create_topic("model", exist_ok=True) == client.topics()[0]
    others: list[dict[str, Any]] = [{}, {"exist_ok": True, "partitions": 2}, {"exist_ok": True, "persistence": "none"}]
    for settings in others:
        with pytest.raises(ps.TopicExists, match="partitions=1") as exists:
            client.create_topic("model", **settings)
        assert exists.value.topic == "model"


BAD_ENTRIES: list[tuple[Any, Any]] = [
    (1, b"v"),
    (None, b"v"),
    ("", b"v"),
    (b"k", "text"),
    (b"k", 1),
    (b"k", None),
    (b"k", [1]),
]


@pytest.mark.usefixtures("untouched")
def test_bad_keys_and_values_are_refused_and_their_whole_call_with_them(publisher: ps.Publisher) -> None:
    for key, value in BAD_ENTRIES:
        with pytest.raises(ps.InvalidEvent):
            publisher.put(key, value)
        with pytest.raises(ps.InvalidEvent):
            publisher.put_many([("good", b"v"), (key, value)])
    for key in (1, None, "", b"x" * 5000):
        with pytest.raises(ps.InvalidEvent):
            publisher.delete(key)  # type: ignore[arg-type]


def test_any_buffer_is_a_value_of_its_bytes(client: ps.Client, publisher: ps.Publisher) -> None:
    values: dict[str, Any] = {
        "bytes": b"1234",
        "empty": b"",
        "bytearray": bytearray(b"1234"),
        "memoryview": memoryview(b"x1234")[1:],
        "strided view": memoryview(b"1x2x3x4x")[::2],
        "array": np.array([1, 2], np.int16),
        "strided array": np.array([[1, 2], [3, 4]], np.int16)[:, 1],
        "column major": np.asfortranarray(np.array([[1, 2], [3, 4]], np.int16)),
    }
    expected = [b"1234", b"", b"1234", b"1234", b"1234", b"\1\0\2\0", b"\2\0\4\0", b"\1\0\2\0\3\0\4\0"]
    with client.replica("model") as replica:
        replica.wait(publisher.put_many(values))
        assert replica.get_many(values) == expected


def test_bad_questions_to_a_replica_are_refused(client: ps.Client, publisher: ps.Publisher) -> None:
    client.create_topic("other", partitions=2)
    calls: list[Callable[[], object]] = [
        lambda: client.replica("model", ordering="total"),
        lambda: client.replica("model", start="yesterday"),
        lambda: client.replica("model", keep_versions=0),
        lambda: client.replica("model", catch_up="some"),
        lambda: client.replica("model", arrays="jax"),  # type: ignore[arg-type]
        lambda: client.replica("model", partitions=[1]),
        lambda: client.replica("model", partitions=[-1]),
        lambda: client.replica([]),
        lambda: client.subscribe("model", start="latest"),
        lambda: client.subscribe("model", ordering="total"),
    ]
    for call in calls:
        with pytest.raises(ps.InvalidEvent):
            call()
    with client.replica(["model", "other"]) as replica:
        for call in (lambda: replica.weights(), lambda: replica.get("k"), lambda: replica.wait_version(1)):
            with pytest.raises(ps.InvalidEvent, match="topic="):
                call()
        with pytest.raises(ps.UnknownTopic, match="'third'"):
            replica.get("k", topic="third")
        with pytest.raises(ps.VersionNotHeld, match="committed"):
            replica.weights(topic="model")
        with pytest.raises(ps.ParamstreamTimeout, match="version 1"):
            replica.wait_version(1, timeout=0.05, topic="model")
    with pytest.raises(ps.ParamstreamError, match="closed"):
        replica.weights(topic="model")
