"""Fault case G03: a broker that moves to another address is found there."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

import paramstream as ps

FOUND_S = 10.0


def test_a_broker_that_comes_back_at_another_address_of_its_list_is_found_there_G03(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    broker = ps.Broker("tcp://127.0.0.1:0", log=log)
    endpoints = [broker.endpoint, f"tcp://127.0.0.2:{urlsplit(broker.endpoint).port}"]
    try:
        with ps.connect(endpoints) as client:
            client.create_topic("model")
            publisher = client.publisher("model", producer="trainer")
            with client.replica("model", arrays="numpy") as replica, client.subscribe("model") as events:
                for number in range(1, 4):
                    replica.wait(publisher.put(str(number), b"before"))
                publisher.publish_weights({"w": np.ones(3)}, version=1)
                replica.wait_version(1)
                broker.close()
                broker = ps.Broker(endpoints[1], log=log)
                moved = time.monotonic()
                for number in range(4, 7):
                    replica.wait(publisher.put(str(number), b"after"), FOUND_S)
                assert time.monotonic() - moved < FOUND_S
                publisher.publish_weights({"w": np.full(3, 2.0)}, version=2)
                replica.wait_version(2, FOUND_S)
                numbers: list[int] = []
                while len(numbers) < 6:
                    event = events.next(FOUND_S)
                    numbers += [int(key) for key, _, _ in event.items]
                assert numbers == [1, 2, 3, 4, 5, 6]
                assert replica.get_many([str(n) for n in range(1, 7)]) == [b"before"] * 3 + [b"after"] * 3
                assert [found.version for found in client.versions("model")] == [1, 2]
    finally:
        broker.close()
