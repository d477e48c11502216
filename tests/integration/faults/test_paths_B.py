"""Fault case B06: a name is never a path. Whatever things are called, their files lie in the folders that were given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from reference.waiting import eventually
from reference.weights import check_weights

ABSOLUTE = "an absolute path"
NAMES = ["../x", "a/b", ABSOLUTE, "..", "n" * 400, "ü\n*"]
WAIT_S = 20.0


@pytest.mark.parametrize("name", NAMES)
def test_topics_replicas_processors_and_tensors_of_any_name_write_in_their_own_folders_only_B06(
    name: str, tmp_path: Path
) -> None:
    inside = tmp_path / "a" / "b"
    name = str(tmp_path / "x") if name == ABSOLUTE else name
    arrays = {name: np.arange(4, dtype=np.float32), "plain": np.ones(2, np.float32)}
    log, kept, state = (inside / folder for folder in ("log", "kept", "state"))
    with ps.Broker(log=f"file:{log}") as broker, ps.connect(broker.endpoint) as client:
        for topic in (name, "out"):
            client.create_topic(topic)
        publisher = client.publisher(name, producer=name)
        publisher.put(name, b"value")
        publisher.publish_weights(arrays, version=1).durable.result(WAIT_S)
        with client.replica(name, name=name, snapshot_dir=kept) as replica:
            replica.snapshot()

        def copy(event: ps.Event, _: object, out: ps.Output) -> None:
            for key, value, _ttl in event.items:
                out.put(key, value)

        with client.run(ps.processor(name, "out")(copy), name=name[:400], state=state), client.replica("out") as copied:
            eventually(lambda: copied.get(name) == b"value")
        with client.replica(name, name=name, start="resume", snapshot_dir=kept, arrays="numpy") as again:
            check_weights(again.weights(), arrays, 1)
            assert again.get(name) == b"value"
    for source in (f"file:{log}", f"snapshot:{kept}"):
        with ps.restore(source, name, arrays="numpy") as restored:
            check_weights(restored.weights(), arrays, 1)
            assert restored.get(name) == b"value"
    assert [*tmp_path.iterdir(), *(tmp_path / "a").iterdir()] == [tmp_path / "a", inside]
    assert {path.name for path in inside.iterdir()} == {"log", "kept", "state"}
