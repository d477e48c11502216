"""The broker command over a real Kafka, and what the command line shows of a topic there."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import paramstream as ps
from processes.world import free_port

COMMAND = [sys.executable, "-P", "-m", "paramstream.cli"]
WITHIN_S = 60.0


def run_json(*arguments: str) -> Any:
    done = subprocess.run(
        [*COMMAND, *arguments, "--json"], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_broker_takes_its_kafka_from_a_file_and_a_topic_is_shown_with_its_settings_there(
    kafka: ps.KafkaLog, tmp_path: Path
) -> None:
    file = tmp_path / "kafka.toml"
    file.write_text(
        f'bootstrap_servers = ["127.0.0.1:1"]\ntopic_prefix = "{kafka.topic_prefix}"\nrequest_timeout_s = 5.0\n'
    )
    # It listens everywhere, so the others could not tell clients where it is.
    port = free_port()
    place = ["--bind", f"tcp://0.0.0.0:{port}", "--insecure", "--advertise", f"tcp://127.0.0.1:{port}", "--name", "one"]
    command = [*COMMAND, "broker", *place, "--kafka-config", str(file)]
    process = subprocess.Popen([*command, "--log", f"kafka://{kafka.servers}"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on tcp://0.0.0.0:{port}\n"
        at = ["--connect", f"tcp://127.0.0.1:{port}"]
        topic = run_json("topics", "create", "my weights", "--partitions", "1", *at)
        described = run_json("topics", "describe", "my weights", *at)
        assert described["storage"]["name"] == f"{kafka.topic_prefix}my-weights.{topic['id']:016x}"
        wanted = {"partitions": "2", "retention.ms": "-1", "cleanup.policy": "delete"}
        assert wanted.items() <= described["storage"].items()
        shown = subprocess.run(
            [*COMMAND, "topics", "describe", "my weights", *at],
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=True,
        )
        verify = ["verify", f"kafka://{kafka.servers}", "--kafka-config", str(file)]
        found = run_json(*verify)
        assert found["whole"] and [each["topic"] for each in found["partitions"]] == [None, *2 * ["my weights"]]
        assert all(each["records"] for each in found["partitions"])
        assert f"in Kafka as {described['storage']['name']}: " in shown.stdout and "retention.ms=-1" in shown.stdout
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WITHIN_S)
        if process.stdout is not None:
            process.stdout.close()
    assert process.returncode == 0


def test_a_kafka_that_is_not_there_and_a_file_that_is_wrong_are_said_to_be_so(tmp_path: Path) -> None:
    file = tmp_path / "kafka.toml"
    file.write_text('bootstrap_servers = ["127.0.0.1:1"]\nrequest_timeout_s = 0.5\n')
    command = [*COMMAND, "broker", "--bind", "tcp://127.0.0.1:0", "--kafka-config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode != 0 and "no Kafka answers at 127.0.0.1:1" in done.stderr
    assert len(done.stderr.splitlines()) == 1, "what aiokafka logs is for those who ask for logs"
    file.write_text("brokers = 3\n")
    environment = {**os.environ, "PARAMSTREAM_KAFKA_PASSWORD": "hunter2"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False, env=environment)
    assert done.returncode != 0 and "unknown setting" in done.stderr and "hunter2" not in done.stderr
