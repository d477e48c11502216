"""Serving over a real broker: held generations, switches by hand, rollbacks, and waiting for replicas."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import paramstream as ps
from processes.bound import KEPT, Tower, tower_of
from processes.child import Child
from reference.waiting import eventually
from reference.weights import check_weights

PROCESSES = 4
MODULES = 4
"""In each process."""

F32 = npt.NDArray[np.float32]


@pytest.fixture
def publisher(client: ps.Client) -> Iterator[ps.Publisher]:
    client.create_topic("model")
    with client.publisher("model", producer="trainer") as publisher:
        yield publisher


def publish(publisher: ps.Publisher, *versions: int) -> None:
    for version in versions:
        publisher.publish_weights(tower_of(version), version=version).accepted.result(20)


# --- held generations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.5, pytest.param(5.0, marks=pytest.mark.slow)])
def test_a_generation_held_over_100_commits_sees_one_version(
    client: ps.Client, publisher: ps.Publisher, seconds: float
) -> None:
    publish(publisher, 0)
    with client.replica("model", arrays="numpy") as replica:
        module = Tower()
        bound = replica.bind(module)
        addresses = [tensor.data_ptr() for tensor in module.state_dict().values()]
        began, seen = time.monotonic(), set[float]()
        with bound.hold() as held:
            for version in range(1, 101):
                publish(publisher, version)
                seen.update(module())
            while time.monotonic() - began < seconds:
                seen.update(module())
            replica.wait_version(100, timeout=20)
            assert seen == {0.0} and held.version == bound.version == 0
            check_weights(held, tower_of(0), 0)
        assert set(module()) == {100.0} and bound.version == 100
        assert [tensor.data_ptr() for tensor in module.state_dict().values()] == addresses


def test_reads_in_and_after_an_update_are_all_answered_and_a_session_sees_one_version_D08(
    client: ps.Client, publisher: ps.Publisher
) -> None:
    """Two replicas behind one client; a hundred reads, every fifth in a session that is held; all in at once."""
    publish(publisher, 4)
    with client.replica("model", name="x") as x, client.replica("model", name="y") as y:
        modules = [Tower(), Tower()]
        bounds = [replica.bind(module) for replica, module in zip((x, y), modules, strict=True)]
        start, answers, sessions = threading.Barrier(101), list[set[float]](), list[set[float]]()

        def read(index: int) -> None:
            module, bound = modules[index % 2], bounds[index % 2]
            start.wait(20)
            time.sleep(index / 1000)
            if index % 5:
                answers.append(set(module()))
            else:
                with bound.hold():
                    sessions.append({value for _ in range(5) for value in module()})

        threads = [threading.Thread(target=read, args=(index,), name=f"read-{index}") for index in range(100)]
        for thread in threads:
            thread.start()
        start.wait(20)
        publish(publisher, 5)
        client.wait_replicas("model", 5, count=2, timeout=20)
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert (len(answers), len(sessions)) == (80, 20)
        assert all(seen in ({4.0}, {5.0}) for seen in (*answers, *sessions))
        assert [set(module()) for module in modules] == [{5.0}, {5.0}]


# --- switched together --------------------------------------------------------------------------------------------------------


def test_sixteen_bound_replicas_in_four_processes_switch_by_hand_and_none_serves_a_mixture(
    broker: ps.Broker, client: ps.Client, publisher: ps.Publisher, tmp_path: Path
) -> None:
    publish(publisher, 0)
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                Child("bound", broker.endpoint, "model", MODULES, f"host-{n}", errors=tmp_path / f"errors-{n}")
            )
            for n in range(PROCESSES)
        ]
        assert all(child.read(60) == {"up": True} for child in children)
        at = 0
        for target in range(KEPT - 1, 5 * KEPT, KEPT - 1):
            publish(publisher, *range(target - KEPT + 2, target + 1))
            client.wait_replicas("model", target, count=PROCESSES * MODULES, timeout=30)
            for child in children:
                before = child.ask("look", 30)
                assert before["versions"] == [at] * MODULES, "nobody goes ahead by itself"
                assert {value for seen in before["seen"] for value in seen} <= {float(at)}
            for child in children:
                assert child.ask("switch", 60, version=target)["versions"] == [target] * MODULES
            for child in children:
                after = child.ask("look", 30)
                assert after["torn"] == 0 and all(count > 0 for count in after["forwards"])
                assert {value for seen in after["seen"] for value in seen} <= {float(at), float(target)}
            for child in children:
                eventually(partial(_all_see, child, target), timeout=20)
            at = target
        for child in children:
            child.end(30)


def _all_see(child: Child, version: int) -> bool:
    found = child.ask("look", 30)["seen"]
    return all(seen == [float(version)] for seen in found)


# --- rollback -----------------------------------------------------------------------------------------------------------------


def random_version(version: int) -> dict[str, F32]:
    random = np.random.default_rng(version)
    return {f"t{n}": random.standard_normal((100, n + 1)).astype(np.float32) for n in range(5)}


@pytest.mark.parametrize("chunk_rows", [1, 40_000])
def test_a_version_that_is_no_longer_kept_is_served_again_from_the_log(
    client: ps.Client, publisher: ps.Publisher, chunk_rows: int
) -> None:
    arrays = {
        version: {**random_version(version), "big": np.full((chunk_rows, 20), version, np.float32)}
        for version in range(1, 7)
    }
    with client.replica("model", name="back", keep_versions=2, catch_up="all", arrays="numpy") as replica:
        told: list[tuple[int, str]] = []
        replica.on_switch(lambda info: told.append((info.version, threading.current_thread().name)))
        for version in range(1, 6):
            publisher.publish_weights(arrays[version], version=version).accepted.result(20)
        replica.wait_version(5, timeout=20)
        # A version stays until a newer one is durable, too.
        eventually(lambda: not _kept(replica, 2))
        replica.rollback(2, timeout=20)
        check_weights(replica.weights(), arrays[2], 2)
        assert replica.weights().vector == _closed_at(client, 2)
        publisher.publish_weights(arrays[6], version=6).accepted.result(20)
        eventually(lambda: _kept(replica, 6))
        check_weights(replica.weights(), arrays[2], 2)
        (status,) = eventually(lambda: [each for each in client.replicas("model") if each.version == 2])
        assert status.served["model"].pinned
        with pytest.raises(ps.ParamstreamTimeout, match=r"'back' serves 2 \(pinned\)"):
            client.wait_replicas("model", 6, count=1, timeout=0.3)
        replica.follow()
        check_weights(replica.weights(), arrays[6], 6)
        client.wait_replicas("model", 6, count=1, timeout=20)
        eventually(lambda: told and told[-1][0] == 6)
        assert [version for version, _ in told] == [1, 2, 3, 4, 5, 2, 6]
        assert {thread for _, thread in told} == {"paramstream-replica-back"}


def _closed_at(client: ps.Client, version: int) -> ps.VersionVector[str]:
    position = next(info.position for info in client.versions("model") if info.version == version)
    return ps.VersionVector({("model", 1): position})


def _kept(replica: ps.Replica, version: int, topic: str | None = None) -> bool:
    try:
        return replica.weights(version, topic=topic).version == version
    except ps.VersionNotHeld:
        return False


def _is_gone(replica: ps.Replica, version: int, topic: str) -> bool:
    return not _kept(replica, version, topic)


def test_a_pinned_version_does_not_hold_the_log_and_follows_from_where_the_log_is() -> None:
    """A log of twelve versions, and sixty go by while one is pinned: publishing is never refused."""
    big = 1_000_000
    with ps.Broker(log="memory:", log_limit=12 * big) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", retain_versions=2)
        publisher = client.publisher("model", producer="trainer")
        with client.replica("model", arrays="numpy") as replica:
            for version in range(1, 62):
                publisher.publish_weights(
                    {"w": np.full(big // 4, version, np.float32)}, version=version
                ).durable.result(20)
                if version == 1:
                    replica.wait_version(1, timeout=20)
                    replica.rollback(1)
                    eventually(
                        lambda: [s for each in client.replicas("model") for s in each.served.values() if s.pinned]
                    )
            assert (replica.weights()["w"] == 1.0).all()
            with pytest.raises(ps.VersionNotHeld):
                replica.rollback(2, timeout=20)
            replica.follow()
            replica.wait_version(61, timeout=20)
            assert (replica.weights()["w"] == 61.0).all()


def test_a_rollback_to_what_nobody_has_changes_nothing(client: ps.Client, publisher: ps.Publisher) -> None:
    publish(publisher, 1, 2)
    with client.replica("model") as replica:
        with pytest.raises(ps.VersionNotHeld, match="the log has: 1, 2"):
            replica.rollback(7, timeout=5)
        publish(publisher, 3)
        replica.wait_version(3, timeout=20)
        assert not replica.status().served["model"].pinned


def test_a_tied_name_that_a_refetched_version_left_out_is_there_again(
    client: ps.Client, publisher: ps.Publisher
) -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    publisher.publish_weights({"embed": weight, "head": weight}, version=1).accepted.result(20)
    for version in range(2, 6):
        publisher.publish_weights({"embed": np.full(4, version, np.float32)}, version=version).accepted.result(20)
    with client.replica("model", start="earliest", arrays="numpy") as replica:
        assert (replica.weights()["head"] == 5.0).all()
        replica.rollback(2, timeout=20)
        assert (replica.weights()["head"] == 2.0).all()


# --- waiting for replicas -----------------------------------------------------------------------------------------------------


def test_a_paused_replica_holds_up_the_wait_for_its_version_and_no_older_answer_counts_C07(
    broker: ps.Broker, client: ps.Client, publisher: ps.Publisher, tmp_path: Path
) -> None:
    publish(publisher, 0)
    with (
        client.replica("model", name="x"),
        Child("bound", broker.endpoint, "model", 1, "y", errors=tmp_path / "errors") as y,
    ):
        assert y.read(60) == {"up": True}
        client.wait_replicas("model", 0, count=2, timeout=20)
        y.pause()
        publish(publisher, 1)
        client.wait_replicas("model", 1, count=1, timeout=20)
        publish(publisher, 2)
        with pytest.raises(ps.ParamstreamTimeout, match=r"1 of 2 replicas serve the version; behind: 'y-0' serves 0"):
            client.wait_replicas("model", 2, count=2, timeout=1.0)
        y.resume()
        client.wait_replicas("model", 2, count=2, timeout=20)
        y.end(30)


def test_the_publisher_hears_why_a_replica_could_not_take_a_version_and_the_next_one_starts_clean_D09(
    broker: ps.Broker, client: ps.Client
) -> None:
    def ten(value: float, third: int = 4) -> dict[str, F32]:
        return {f"layers.{n}": np.full(third if n == 3 else 256, value, np.float32) for n in range(8)}

    client.create_topic("model")
    first = client.publisher("model", producer="trainer")
    first.publish_weights(ten(1.0, third=256), version=1).accepted.result(20)
    with ps.connect(broker.endpoint) as far, far.replica("model", name="picky") as replica:
        module = Tower()
        bound = replica.bind(module)
        first.publish_weights(ten(2.0), version=2, schema="replace").accepted.result(20)
        began = time.monotonic()
        with pytest.raises(ps.SchemaMismatch, match=r"replica 'picky': .*layers.3: \(256,\) here, \(4,\) there"):
            client.wait_replicas("model", 2, count=1, timeout=20)
        assert time.monotonic() - began < 5.0
        assert set(module()) == {1.0} and bound.version == 1
        first.close()
        with ps.connect(broker.endpoint) as again:
            second = again.publisher("model", producer="trainer")
            receipt = second.publish_weights(ten(3.0, third=256), version=3, schema="replace")
            receipt.accepted.result(20)
            again.wait_replicas("model", 3, count=1, timeout=20)
            assert set(module()) == {3.0} and bound.error is None
            assert bound.digest == again.versions("model")[-1].digest


def test_waiting_for_replicas_that_are_not_there_names_nobody(client: ps.Client, publisher: ps.Publisher) -> None:
    publish(publisher, 1)
    with pytest.raises(ps.ParamstreamTimeout, match="0 of 2 replicas serve the version") as late:
        client.wait_replicas("model", 1, count=2, timeout=0.2)
    assert (late.value.topic, late.value.version) == ("model", 1)
    with pytest.raises(ps.InvalidEvent):
        client.wait_replicas("model", 1, count=0)
    with pytest.raises(ps.UnknownTopic):
        client.wait_replicas("nowhere", 1, count=1, timeout=1)


# --- several topics, and what a replica reads ---------------------------------------------------------------------------------


def test_several_topics_in_one_replica_are_told_apart_and_each_keeps_its_versions(client: ps.Client) -> None:
    for topic in ("actor", "critic"):
        client.create_topic(topic)
    with client.replica(["actor", "critic"], keep_versions=3, catch_up="all", arrays="numpy") as replica:
        actor = client.publisher("actor", producer="trainer")
        critic = client.publisher("critic", producer="trainer")
        for version in range(1, 6):
            actor.publish_weights(tower_of(version), version=version).accepted.result(20)
            critic.publish_weights(tower_of(10 * version), version=10 * version).accepted.result(20)
        replica.wait_version(5, topic="actor", timeout=20)
        replica.wait_version(50, topic="critic", timeout=20)
        modules = {topic: Tower() for topic in ("actor", "critic")}
        bounds = {topic: replica.bind(module, topic=topic) for topic, module in modules.items()}
        told: list[int] = []
        replica.on_switch(lambda info: told.append(info.version))
        for topic, scale in (("actor", 1), ("critic", 10)):
            for version in (3, 4, 5):
                check_weights(replica.weights(scale * version, topic=topic), tower_of(scale * version), scale * version)
            eventually(partial(_is_gone, replica, 2 * scale, topic))
        bounds["actor"].switch(3)
        replica.rollback(40, topic="critic")
        assert (set(modules["actor"]()), set(modules["critic"]())) == ({3.0}, {40.0})
        assert replica.status().served["critic"].pinned and not replica.status().served["actor"].pinned
        replica.follow(topic="critic")
        assert set(modules["critic"]()) == {50.0}
        eventually(lambda: told == [40, 50])
        for call in (
            replica.weights,
            lambda: replica.wait_version(5),
            lambda: replica.bind(Tower()),
            lambda: replica.rollback(5),
            replica.follow,
            lambda: replica.get("key"),
            lambda: replica.get_many(["key"]),
        ):
            with pytest.raises(ps.InvalidEvent, match=r"follows several topics \('actor', 'critic'\).*topic="):
                call()


def test_a_topic_is_followed_by_its_exact_name_B01(client: ps.Client) -> None:
    names = ("layer.1", "layer.10", "layer.1.bias")
    for name in names:
        client.create_topic(name)
    with (
        client.subscribe("layer.1") as events,
        client.replica("layer.1") as one,
        client.replica(names) as all_of_them,
    ):
        for name in names:
            with client.publisher(name, producer="trainer") as publisher:
                publisher.put("key", name.encode()).accepted.result(20)
        with client.publisher("layer.1", producer="trainer") as publisher:
            last = publisher.put("last", b"").accepted.result(20)
        assert [(event.topic, event.items) for event in (events.next(timeout=20), events.next(timeout=20))] == [
            ("layer.1", ((b"key", b"layer.1", None),)),
            ("layer.1", ((b"last", b"", None),)),
        ]
        one.wait(last, timeout=20)
        assert (one.status().topics, one.get("key")) == (("layer.1",), b"layer.1")
        for name in names:
            eventually(partial(_has, all_of_them, name))


def _has(replica: ps.Replica, topic: str) -> bool:
    return replica.get("key", topic=topic) == topic.encode()


def test_a_read_that_passes_the_receipt_of_a_write_never_sees_an_older_value_H08(
    broker: ps.Broker, client: ps.Client, publisher: ps.Publisher
) -> None:
    """200 rounds through a replica that is kept 20 ms behind: each read has the write before it, or the wait says that it is late."""
    late = 0
    with ps.connect(broker.endpoint) as far, far.replica("model", name="slow") as replica:
        replica.on_switch(lambda info: time.sleep(0.02))
        for number in range(200):
            # The version before the put takes the replica's thread for 20 ms.
            publisher.publish_weights({"w": np.full(4, number, np.float32)}, version=number)
            receipt = publisher.put("k", str(number).encode())
            try:
                replica.wait(receipt, timeout=0.001 if number % 10 == 0 else 20.0)
            except ps.ParamstreamTimeout:
                late += 1
                continue
            value = replica.get("k")
            assert value is not None and int(value) >= number
    assert late > 0, "the replica did lag"
