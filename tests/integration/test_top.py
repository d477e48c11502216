"""`paramstream top`: what it says is what is so, of every hop."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paramstream as ps
from paramstream.cli.top import record
from paramstream.transport.messages import Refused, Report
from processes.child import Child
from reference.waiting import eventually
from wire.peer import Peer

COMMAND = [sys.executable, "-P", "-m", "paramstream.cli", "top", "--connect"]
WITHIN_S = 60.0


def look(client: ps.Client) -> Any:
    return record(client.describe_broker())


def weights_of(found: Any, topic: str) -> Any:
    """The weight partition of a topic with one state partition."""
    return next(each for each in found["topics"] if each["name"] == topic)["partitions"][1]


def publish(publisher: ps.Publisher, version: int) -> None:
    publisher.publish_weights({"w": np.full(10, version, np.float32)}, version)


def test_json_is_one_object_that_names_topics_heads_producers_and_followers(
    broker: ps.Broker, client: ps.Client
) -> None:
    client.create_topic("model")
    with (
        client.publisher("model", producer="trainer") as publisher,
        client.replica("model", name="serving") as replica,
        client.subscribe("model"),
    ):
        publish(publisher, 7)
        replica.wait_version(7)
        publisher.flush()
        eventually(lambda: [(each["version"], each["lag_events"]) for each in look(client)["replicas"]] == [(7, 0)])
        done = subprocess.run(
            [*COMMAND, broker.endpoint, "--json"], capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    weights = weights_of(found, "model")
    assert (weights["holds"], weights["newest"]["version"], weights["versions"]) == ("weights", 7, 1)
    assert weights["accepted"] == weights["durable"] == weights["newest"]["position"]
    assert (weights["undurable_events"], weights["undurable_s"]) == (0, 0)
    (producer,) = found["producers"]
    assert (producer["name"], producer["last"]) == ("trainer", {"model/1": weights["accepted"]})
    assert 0 < producer["idle_s"] < WITHIN_S
    (serving,) = found["replicas"]
    assert (serving["name"], serving["topic"], serving["lag_events"], serving["stale_s"]) == ("serving", "model", 0, 0)
    assert (serving["follows"], serving["fetching"], serving["unsent_events"]) == ([0, 1], [], 0)
    (subscription,) = found["subscriptions"]
    assert (subscription["topic"], subscription["follows"]) == ("model", [0, 1])
    assert found["log_bytes"] > sum(each["log_bytes"] for each in found["topics"][0]["partitions"]) > 0


def test_a_replica_that_no_longer_reports_is_shown_with_its_age_and_what_it_misses(client: ps.Client) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    publish(publisher, 1)
    publisher.flush()
    replica = client.replica("model", name="serving")
    eventually(lambda: [(each["version"], each["lag_events"]) for each in look(client)["replicas"]] == [(1, 0)])
    replica.close()
    publish(publisher, 2)
    publish(publisher, 3)
    publisher.flush()
    before = look(client)["replicas"][0]
    eventually(lambda: look(client)["replicas"][0]["stale_s"] > before["stale_s"])
    (serving,) = look(client)["replicas"]
    assert (serving["version"], serving["versions_behind"], serving["follows"]) == (1, 2, [])
    # A chunk, a part and a commit of each.
    assert serving["lag_events"] == 6
    assert 0 < serving["stale_s"] <= serving["report_age_s"]


def test_a_report_without_a_vector_is_refused_and_spoils_nobodys_view(broker: ps.Broker, client: ps.Client) -> None:
    topic = client.create_topic("model")
    with Peer(broker.endpoint) as peer:
        peer.hello()
        peer.say(Report("liar", (topic.id,), (), b"no vector", 0, ()))
        assert "vector" in peer.hear(Refused).error.problem
    assert look(client)["replicas"] == []
    assert client.replicas("model") == []


def test_a_disk_that_does_not_sync_shows_as_events_that_wait_to_be_durable(tmp_path: Path) -> None:
    with Child("broker", tmp_path / "log", "tcp://127.0.0.1:0", "boot", 1 << 30, errors=tmp_path / "errors") as child:
        endpoint = child.read(WITHIN_S)["endpoint"]
        with ps.connect(endpoint) as client:
            client.create_topic("model")
            publisher = client.publisher("model", producer="trainer")
            publisher.put("a", b"1").durable.result()
            child.ask("hold", WITHIN_S)
            publisher.put("a", b"2").accepted.result()
            publisher.put("a", b"3").accepted.result()

            def state() -> Any:
                return look(client)["topics"][0]["partitions"][0]

            eventually(lambda: state()["undurable_s"] > 0.05)
            assert state()["undurable_events"] == 2
            assert state()["accepted"] > state()["durable"]
            child.ask("release", WITHIN_S)
            publisher.flush()
            eventually(lambda: state()["undurable_events"] == 0)
            assert (state()["undurable_s"], state()["durable_after_s"] > 0.05) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_view_is_shown_again_and_again_until_it_is_told_to_stop(
    broker: ps.Broker, client: ps.Client, number: int
) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    process = subprocess.Popen(
        [*COMMAND, broker.endpoint, "--interval", "0.01"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        for version in range(1, 4):
            publish(publisher, version)
            wanted = f" {version}"
            assert any(line.startswith("model/weights") and line.rstrip().endswith(wanted) for line in process.stdout)
        process.send_signal(number)
        assert process.wait(WITHIN_S) == 0
    finally:
        process.kill()
        _, errors = process.communicate()
    assert errors == ""


def test_the_view_outlives_a_restart_of_the_broker(tmp_path: Path) -> None:
    address, log = f"ipc://{tmp_path}/socket", f"file:{tmp_path}/log"
    with ps.Broker(bind=address, log=log), ps.connect(address) as client:
        client.create_topic("model")
        process = subprocess.Popen([*COMMAND, address, "--interval", "0.01"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            assert any(line.startswith("model/weights") for line in process.stdout)
        except BaseException:
            process.kill()
            raise
    try:
        # Gone: a look says so, and the next ones go on.
        assert any(line.startswith(f"{address}: ") and " clients" not in line for line in process.stdout)
        with ps.Broker(bind=address, log=log):
            assert any(line.startswith("model/weights") for line in process.stdout)
            process.terminate()
            assert process.wait(WITHIN_S) == 0
    finally:
        process.kill()
        process.communicate()
