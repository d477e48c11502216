"""A processor that trains: gradients come in, their sum moves the weights, and every tenth one gives a new version.

Run it by itself: `python examples/process_gradients.py`. It stops the processor half way and runs it again, as after a
crash: each gradient is in the weights once.
"""

import tempfile
from typing import Any

import numpy as np

import paramstream as ps
from paramstream.consumers.events import Event

DIM, STEPS, EVERY, RATE = 4, 60, 10, 0.125


@ps.processor(source="grads", sink="weights", weights=False)
def descend(event: Event, state: dict[Any, Any], out: ps.Output) -> None:
    if event.grads is None:
        return
    weights = state.setdefault("weights", np.zeros(DIM, np.float32))
    weights -= RATE * event.grads.sum(axis=0)
    state["steps"] = state.get("steps", 0) + 1
    if state["steps"] % EVERY == 0:
        out.publish_weights({"w": weights}, version=state["steps"])


def main() -> None:
    with tempfile.TemporaryDirectory() as state, ps.Broker() as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("grads")
        client.create_table("grads", "layer", dim=DIM, optimizer=ps.SGD(lr=0.1))
        client.create_topic("weights")
        trainer = client.publisher("grads", producer="trainer-0")
        replica = client.replica("weights", arrays="numpy")
        for run in range(2):
            with client.run(descend, name="descend", state=state):
                for _ in range(STEPS // 2):
                    trainer.publish_gradients("layer", [0], np.ones((1, DIM), np.float32))
                version = (run + 1) * STEPS // 2
                replica.wait_version(version)
                print(f"version {version} is", replica.weights()["w"])
        assert np.array_equal(np.asarray(replica.weights()["w"]), np.full(DIM, -RATE * STEPS, np.float32))


if __name__ == "__main__":
    main()
