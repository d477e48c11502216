"""Processors count each input once, whatever is killed at random moments: the processes that run them, brokers, and Kafka.

pytest tests/integration/test_processor_kills.py                                a few rounds
pytest tests/integration/test_processor_kills.py -m slow                        fifty, and twenty over Kafka
pytest tests/integration/test_processor_kills.py -m slow --rounds 200 --seed 9  as many as you like, with the victims of that seed
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from processes.counting import run_counting
from processes.kafka_home import KafkaHome
from processes.local_home import LocalHome
from processes.world import Home
from realkafka.cluster import Cluster

DEATHS = pytest.mark.parametrize("power", [pytest.param(False, id="kills"), pytest.param(True, id="power failures")])


def run_locally(folder: Path, seed: int, rounds: int, *, power: bool) -> None:
    def make_home(place: Path, chance: random.Random) -> Home:
        return LocalHome(place, chance, power=power)

    run_counting(folder, make_home, seed, rounds)


@DEATHS
def test_each_input_counts_once_after_a_few_kills(tmp_path: Path, seed: int, rounds: int | None, power: bool) -> None:
    run_locally(tmp_path, seed, 2 if rounds is None else rounds, power=power)


@pytest.mark.slow
@DEATHS
def test_each_input_counts_once_after_fifty_kills(tmp_path: Path, seed: int, rounds: int | None, power: bool) -> None:
    run_locally(tmp_path, seed, 50 if rounds is None else rounds, power=power)


@pytest.mark.slow
@pytest.mark.parametrize("brokers", [1, 2], ids=["one broker", "two brokers"])
def test_each_input_counts_once_after_twenty_kills_over_kafka(
    tmp_path: Path, mortal_kafka: Cluster, seed: int, rounds: int | None, brokers: int
) -> None:
    def make_home(_: Path, chance: random.Random) -> Home:
        return KafkaHome(mortal_kafka, chance, brokers=brokers)

    run_counting(tmp_path, make_home, seed, 20 if rounds is None else rounds)
