"""A parameter server end to end: trainers, a broker, the processor, and a replica that serves what comes out."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paramstream as ps
from paramstream.consumers.processors.processor import Processor
from processes.training import run_training
from reference.parameter_server import Model, Tensors, summed
from reference.waiting import eventually

MIB = 1 << 20
STEPS = 14
"""Of gradients of a MiB: some more than a log of 16 MiB takes of them."""
INITIAL: Tensors = {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "b": np.array([0.5], np.float32)}
TRAINERS = ("trainer-0", "trainer-1")


@pytest.fixture
def client(client: ps.Client) -> ps.Client:
    client.create_topic("grads")
    client.create_topic("weights")
    return client


def gradients(step: int, trainer: int) -> Tensors:
    chance = np.random.default_rng((step, trainer))
    return {name: chance.normal(size=value.shape).astype(np.float32) for name, value in INITIAL.items()}


def server(**given: Any) -> Processor:
    about: dict[str, Any] = {"optimizer": ps.Adam(lr=0.01), "initial": "first", "trainers": TRAINERS}
    return ps.parameter_server("grads", "weights", **about | given)


def bits(weights: Any) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in weights.items()}


def test_trainers_and_their_server_train_to_the_bits_of_a_plain_reference(client: ps.Client, tmp_path: Path) -> None:
    model = Model(INITIAL, ps.Adam(lr=0.01))
    publishers = [client.publisher("grads", producer=name) for name in TRAINERS]
    publishers[0].publish_dense_gradients(INITIAL, step=0)
    with client.replica("weights", arrays="numpy") as replica:
        for life in range(2):
            with client.run(server(report="about"), name="server", state=tmp_path):
                for step in range(1 + 3 * life, 4 + 3 * life):
                    for number in (1, 0):
                        publishers[number].publish_dense_gradients(gradients(step, number), step=step)
                    model.apply(summed([(name, gradients(step, n)) for n, name in enumerate(TRAINERS)]))
                    # What a trainer that came back sends again does not count.
                    publishers[1].publish_dense_gradients(gradients(step, 1), step=step)
                    replica.wait_version(step)
                    assert bits(replica.weights()) == bits(model.weights)
                # Before the server is stopped, so that the next life has only new input.
                publishers[1].flush()
        assert [info.version for info in client.versions("weights")] == list(range(7))
        about = replica.get("about")
        assert about is not None
        assert json.loads(about)["counts"]["late"] == 5
    with client.replica("grads", arrays="numpy") as passive:
        assert (passive.status().stopped, passive.get("w")) == ({}, None)


def test_a_source_of_several_state_partitions_is_refused(client: ps.Client, tmp_path: Path) -> None:
    client.create_topic("wide", partitions=2)
    wide = ps.parameter_server("wide", "weights", optimizer=ps.SGD(lr=0.1), initial="first")
    with pytest.raises(ps.InvalidEvent, match="1 state partitions, this one has 2") as caught:
        client.run(wide, name="server", state=tmp_path)
    assert caught.value.topic == "wide"


def test_a_topic_of_gradients_is_bounded_while_its_server_runs_and_holds_all_while_none_does(tmp_path: Path) -> None:
    grads = {"w": np.full(MIB // 4, 0.25, np.float32)}
    with ps.Broker(log="memory:", log_limit=16 * MIB) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("grads")
        client.create_topic("weights", retain_versions=1)
        trainer = client.publisher("grads", producer="trainer-0")
        adder = server(optimizer=ps.SGD(lr=1.0), initial={"w": np.zeros(MIB // 4, np.float32)}, trainers=1, every=STEPS)
        step = 0
        # Nobody has them: they stay, and at the limit the trainer is told.
        with pytest.raises(ps.StorageFull):
            for _ in range(STEPS):
                trainer.publish_dense_gradients(grads, step=step + 1).accepted.result()
                step += 1
        assert 4 < step < STEPS - 1
        with client.run(adder, name="server", state=tmp_path) as run, client.replica("weights") as replica:

            def publish(step: int) -> bool:
                try:
                    trainer.publish_dense_gradients(grads, step=step).accepted.result()
                except ps.StorageFull:
                    return False
                return True

            for left in range(step + 1, STEPS + 1):
                eventually(partial(publish, left))
            replica.wait_version(STEPS)
            assert float(replica.weights()["w"][0]) == -STEPS / 4
            assert broker.status().log_bytes <= 16 * MIB
            # What has left the log changes no replica: one that comes late begins all the same.
            with client.replica("grads", start="earliest") as late:
                assert late.status().stopped == {}
            assert run.status().failed == ()


def test_training_comes_to_the_bits_of_the_reference_after_a_kill(
    tmp_path: Path, seed: int, rounds: int | None
) -> None:
    run_training(tmp_path, seed, 1 if rounds is None else rounds, power=False)


@pytest.mark.slow
@pytest.mark.parametrize("power", [pytest.param(False, id="kills"), pytest.param(True, id="power failures")])
def test_training_comes_to_the_bits_of_the_reference_after_forty_kills(
    tmp_path: Path, seed: int, rounds: int | None, power: bool
) -> None:
    run_training(tmp_path, seed, 40 if rounds is None else rounds, power=power)
