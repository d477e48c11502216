"""The rounds of `test_kills.py` with the log in Kafka, which is among the victims: killed and started again, or stopped for a while.

pytest tests/integration/test_kafka_kills.py                                two rounds
pytest tests/integration/test_kafka_kills.py -m slow                        twenty
pytest tests/integration/test_kafka_kills.py -m slow --rounds 50 --seed 11  as many as you like, with the victims of that seed

Under `write_back` a killed broker may lose what it had accepted and Kafka did not have: then it is called lost by everybody, and
the log does not have it.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from processes.kafka_home import KafkaHome
from processes.killing import run_kills
from processes.world import Home
from realkafka.cluster import Cluster


def run(folder: Path, cluster: Cluster, brokers: int, seed: int, rounds: int) -> None:
    def make_home(_: Path, chance: random.Random) -> Home:
        return KafkaHome(cluster, chance, brokers=brokers)

    run_kills(folder, make_home, seed, rounds)


def test_nothing_promised_is_missing_after_two_kills_over_kafka(
    tmp_path: Path, mortal_kafka: Cluster, seed: int, rounds: int | None
) -> None:
    run(tmp_path, mortal_kafka, 2, seed, 2 if rounds is None else rounds)


@pytest.mark.slow
@pytest.mark.parametrize("brokers", [1, 2], ids=["one broker", "two brokers"])
def test_nothing_promised_is_missing_after_twenty_kills_over_kafka(
    tmp_path: Path, mortal_kafka: Cluster, brokers: int, seed: int, rounds: int | None
) -> None:
    run(tmp_path, mortal_kafka, brokers, seed, 20 if rounds is None else rounds)
