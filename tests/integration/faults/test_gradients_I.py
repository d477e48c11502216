"""Fault case I03: gradients count once, wherever a replica that keeps its state is killed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.events.tables import definition_of
from processes.child import Child
from reference.row_table import RowTableModel

WAIT_S = 30.0
GRADIENTS, KILLS = 200, 20


@pytest.mark.slow
def test_200_gradients_count_once_over_20_kills_of_a_process_I03(
    broker: ps.Broker, client: ps.Client, tmp_path: Path
) -> None:
    model = RowTableModel(definition_of("t", 2, "float32", ps.SGD(0.3)))
    client.create_topic("model")
    client.create_table("model", "t", 2, optimizer=ps.SGD(0.3))
    publisher, folder, chance = client.publisher("model", producer="trainer"), tmp_path / "kept", random.Random(1)
    rounds = threading.Semaphore(0)

    def publish() -> None:
        draws = np.random.default_rng(1)
        for number in range(GRADIENTS):
            if number % (GRADIENTS // KILLS) == 0:
                rounds.acquire()
            keys, grads = draws.integers(0, 4, 3).tolist(), draws.normal(size=(3, 2)).astype(np.float32)
            publisher.publish_gradients("t", keys, grads)
            model.apply(keys, grads, number + 1)
            time.sleep(0.02)

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        for number in range(KILLS):
            with Child("resumed_replica", broker.endpoint, "model", folder, errors=tmp_path / "errors") as child:
                assert child.read(WAIT_S) == {"began": number > 0}
                rounds.release()
                assert "kept" in child.read(WAIT_S)
                time.sleep(chance.random() * 0.2)
                child.kill()
    finally:
        rounds.release(KILLS)
        publishing.join()
    publisher.flush(WAIT_S)
    reference = client.replica("model", start="earliest", arrays="numpy")
    values, _ = model.lookup([0, 1, 2, 3])
    assert reference.lookup("t", [0, 1, 2, 3]).tobytes() == values.tobytes()
    with Child("resumed_replica", broker.endpoint, "model", folder, errors=tmp_path / "errors") as child:
        assert child.read(WAIT_S) == {"began": True}
        child.send("digest", vector=str(reference.vector))
        line = child.read(WAIT_S)
        while "digest" not in line:
            line = child.read(WAIT_S)
        assert line["digest"] == reference.digest()
        child.end(WAIT_S)
