"""A replica whose process stands still: the broker's memory stays bounded, and nobody else notices."""

from __future__ import annotations

import time
from pathlib import Path

import paramstream as ps
from processes.child import Child
from processes.local_home import LOG_LIMIT
from processes.world import START_S
from reference.waiting import eventually

TOPIC = "model"
WAIT_S = 30.0
VALUE_BYTES = 600_000
PUTS = 400
"""240 MB, over ten keys."""
BOUND_BYTES = 96 * 1024 * 1024
"""What a broker may take for a consumer that takes nothing: its credit, and what has been handed to ZeroMQ and the kernel."""


def put_many_bytes(publisher: ps.Publisher, replica: ps.Replica) -> float:
    """Publish and wait until `replica` has it all: the seconds it took."""
    began = time.monotonic()
    for number in range(PUTS):
        publisher.put(f"k{number % 10}", number.to_bytes(4, "big") * (VALUE_BYTES // 4))
    replica.wait(publisher.put("end", b"of them"), WAIT_S)
    return time.monotonic() - began


def test_a_stopped_replica_costs_bounded_memory_and_nobody_else_waits(tmp_path: Path) -> None:
    folder, errors = tmp_path / "log", tmp_path / "stderr"
    with Child("broker", folder, "tcp://127.0.0.1:0", "boot", 4 * LOG_LIMIT, errors=errors) as broker:
        endpoint = str(broker.read(START_S)["endpoint"])
        with ps.connect(endpoint) as client:
            client.create_topic(TOPIC)
            publisher = client.publisher(TOPIC, producer="trainer")
            other = client.replica(TOPIC, name="other", arrays="numpy")
            with Child("replica", endpoint, TOPIC, "stopped", "causal", errors=errors) as stopped:
                stopped.read(START_S)
                usual_s = put_many_bytes(publisher, other)
                before = broker.rss_bytes, stopped.rss_bytes

                stopped.pause()
                with_one_stopped_s = put_many_bytes(publisher, other)
                assert broker.rss_bytes - before[0] < BOUND_BYTES
                assert with_one_stopped_s < 3 * usual_s + 1.0
                # It is not said to be well: what it last reported gets old.
                eventually(
                    lambda: {r.name: r.stale for r in client.replicas(TOPIC)} == {"other": False, "stopped": True}
                )

                stopped.resume()
                end = str(publisher.put("last", b"put").positions)
                assert not stopped.ask("wait", 2 * WAIT_S, vector=end, within=WAIT_S)["error"]
                other.wait(ps.VersionVector.parse(end), WAIT_S)
                state = stopped.ask("state", WAIT_S)
                assert state["digest"] == other.digest()
                assert broker.rss_bytes - before[0] < BOUND_BYTES
                assert stopped.rss_bytes - before[1] < BOUND_BYTES
