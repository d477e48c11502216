"""A process that may open few files: `python -m processes.descriptors WHAT FOLDER ROUNDS`.

`connects`: connects to a broker of its own and closes again, with and without a publisher, a replica and a subscription.
`restarts`: starts and closes brokers over one log in `FOLDER`. Both say how many descriptors were open after each round.
`limit`: says how each thing that needs descriptors ends where there are none, and whether all goes on once there are again.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import paramstream as ps

from .lines import say

LIMIT = 256


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def use(endpoint: str, round_number: int) -> None:
    with ps.connect(endpoint, timeout=30) as client:
        if round_number % 10 == 0:
            client.create_topic("model", exist_ok=True)
            with (
                client.publisher("model", producer="writer") as publisher,
                client.replica("model", name="reader", arrays="numpy") as replica,
                client.subscribe("model"),
            ):
                replica.wait(publisher.put("key", round_number.to_bytes(4, "little")))


def connects(folder: Path, rounds: int) -> list[int]:
    counts: list[int] = []
    with ps.Broker(bind=f"ipc://{folder}/socket") as broker:
        for number in range(rounds):
            use(broker.endpoint, number)
            counts.append(open_descriptors())
    return counts


def restarts(folder: Path, rounds: int) -> list[int]:
    counts: list[int] = []
    for number in range(rounds):
        with ps.Broker(bind=f"ipc://{folder}/socket", log=f"file:{folder}/log") as broker:
            use(broker.endpoint, number)
        counts.append(open_descriptors())
    return counts


@contextmanager
def none_left() -> Generator[None]:
    """No descriptor is free in the block."""
    held: list[int] = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    try:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def ending(call: Callable[[], object]) -> str:
    """The code of the error that it ends with; empty where it does not."""
    try:
        call()
    except ps.ParamstreamError as error:
        return error.code
    return ""


def limit(folder: Path) -> dict[str, str]:
    ended: dict[str, str] = {}
    with none_left():
        # Nothing of ZeroMQ lives yet: its threads are started by the first socket.
        ended["first broker"] = ending(ps.Broker)
    with (
        ps.Broker(log=f"file:{folder}/log") as broker,
        ps.connect(broker.endpoint) as client,
        client.publisher(client.create_topic("model").name, producer="writer") as publisher,
    ):
        with none_left():
            ended["broker"] = ending(ps.Broker)
            ended["connect"] = ending(lambda: ps.connect(broker.endpoint, timeout=0.5))
            ended["replica"] = ending(lambda: client.replica("model", timeout=0.5))
            ended["topic"] = ending(lambda: client.create_topic("another"))
            ended["put"] = ending(lambda: publisher.put("key", b"1").durable.result(5))
        ended["topics afterwards"] = ",".join(topic.name for topic in client.topics())
        client.create_topic("another")
        with client.replica("model", arrays="numpy") as replica:
            replica.wait(publisher.put("key", b"2"))
            ended["key afterwards"] = str(replica.get("key"))
        second = ps.Broker()
        with none_left():
            ended["close"] = ending(second.close)
    return ended


def main(what: str, folder: str, rounds: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    match what:
        case "connects":
            say(counts=connects(Path(folder), int(rounds)))
        case "restarts":
            say(counts=restarts(Path(folder), int(rounds)))
        case _:
            say(ended=limit(Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
