"""Restores of rows, however much of the log there is of them."""

from pathlib import Path

import numpy as np
import pytest

import paramstream as ps

ROWS = 3200
"""Of 64 floats: about what one event holds."""
EVENTS = 14
"""Of each broker: more than a replica takes in before it applies."""


@pytest.mark.parametrize("dram", ["1GiB", "6MiB"])
def test_rows_of_a_log_that_is_longer_than_what_a_replica_takes_in_at_once_are_restored(
    tmp_path: Path, dram: str
) -> None:
    """A definition waits until it is durable, and so does what has no room for before-images: in a log that is read, all is. Two
    brokers, one after the other, so that an epoch ends in the midst of it.
    """
    log = f"file:{tmp_path / 'log'}"
    keys, gradients = np.arange(ROWS), np.ones((ROWS, 64), np.float32)
    for optimizer in (ps.SGD(1.0), ps.Adagrad(1.0)):
        with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
            if optimizer == ps.SGD(1.0):
                client.create_topic("ads")
                client.create_table("ads", "users", dim=64, optimizer=optimizer)
            else:
                client.alter_table("ads", "users", optimizer=optimizer)
            live = client.replica("ads", arrays="numpy")
            trainer = client.publisher("ads", producer="trainer")
            for number in range(EVENTS):
                trainer.publish_gradients("users", keys + number, gradients)
            live.wait(trainer.publish_gradients("users", keys, gradients))
            trainer.flush()
            digest, vector = live.digest(), live.vector
    store = ps.TieredStore(dram=dram, ssd=f"{tmp_path / 'tier'}:64MiB")
    with store, ps.restore(log, "ads", store=store, arrays="numpy") as restored:
        assert restored.vector == vector
        assert restored.digest() == digest
