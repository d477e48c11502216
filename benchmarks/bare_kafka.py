"""What Kafka gives by itself: a bare aiokafka producer in a process of its own, and an Apache Kafka to measure with.

Its settings are the ones that lose nothing which Kafka has acknowledged: `acks="all"`, batches of up to 1 MiB, one request at a time.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

from paramstream.eventlog.kafka.wire import aiokafka

from .processes import Process

VARIABLE = "PARAMSTREAM_KAFKA"
PROGRAM = Path(__file__).resolve().parents[2] / "shared" / "kafka" / "kafka_cluster.py"
"""Beside the checkout: starts a Kafka, prints `bootstrap HOST:PORT`, and ends it on SIGTERM."""

BATCH_NBYTES = 1024 * 1024
LINGER_MS = 5
"""Of the producer that moves as much as it can; the one that waits for each ack sends at once."""

STARTS = 3
"""The ports of a new Kafka are chosen free, and somebody else may take one before it does."""


def why_there_is_none() -> str:
    """Why there is no Kafka to measure with; empty where there is one."""
    if is_named():
        return ""
    if not PROGRAM.is_file():
        return f"{VARIABLE} names no Kafka, and {PROGRAM} is missing"
    if shutil.which("java") is None:
        return f"{VARIABLE} names no Kafka, and there is no java to start one with"
    return ""


def is_named() -> bool:
    """The Kafka to measure with is the user's own."""
    return bool(os.environ.get(VARIABLE))


@contextmanager
def kafka(nodes: int = 1) -> Generator[str]:
    """The servers of the Kafka that PARAMSTREAM_KAFKA names, or of one of so many nodes that is started for the time being."""
    if is_named():
        yield os.environ[VARIABLE]
        return
    process, servers = _start(nodes)
    try:
        yield servers
    finally:
        process.terminate()
        process.communicate()


def _start(nodes: int) -> tuple[subprocess.Popen[str], str]:
    for _ in range(STARTS):
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), f"--nodes={nodes}"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        said = process.stdout.readline().split()
        if said[:1] == ["bootstrap"]:
            return process, said[1]
        process.communicate()
    raise RuntimeError(f"{PROGRAM} started no Kafka")


@contextmanager
def topic_prefix(bootstrap: str) -> Generator[str]:
    """Begins the names of topics that nobody else has; all of them are deleted at the end."""
    prefix = f"benchmark-{uuid4().hex}."
    try:
        yield prefix
    finally:
        asyncio.run(_delete_topics(bootstrap, prefix))


async def _delete_topics(bootstrap: str, prefix: str) -> None:
    admin = aiokafka(".admin").AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([name for name in await admin.list_topics() if name.startswith(prefix)])
    finally:
        await admin.close()


class BareProducer(Process):
    """Sends one value again and again to a topic of its own, which it makes."""

    def __init__(self, bootstrap: str, topic: str, replication: int = 1) -> None:
        super().__init__(_answer, bootstrap, topic, replication)

    def seconds(self, count: int, nbytes: int) -> float:
        """From the first of `count` records of `nbytes` to the ack of the last, in batches as full as they can be."""
        return float(self.ask(("seconds", count, nbytes)))

    def latencies(self, count: int, nbytes: int, gap_s: float) -> list[float]:
        """Seconds from each send to its ack; the next one goes `gap_s` after it."""
        return list(self.ask(("latencies", count, nbytes, gap_s)))


def _answer(pipe: Connection, bootstrap: str, topic: str, replication: int) -> None:
    asyncio.run(_serve(pipe, bootstrap, topic, replication))


async def _serve(pipe: Connection, bootstrap: str, topic: str, replication: int) -> None:
    admin = aiokafka(".admin").AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([aiokafka(".admin").NewTopic(topic, 1, replication)])
    await admin.close()
    producers = [
        aiokafka().AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            enable_idempotence=False,
            max_batch_size=BATCH_NBYTES,
            max_request_size=BATCH_NBYTES,
            linger_ms=linger_ms,
        )
        for linger_ms in (LINGER_MS, 0)
    ]
    for producer in producers:
        await producer.start()
        await producer.send_and_wait(topic, b"first", partition=0)
    batched, prompt = producers
    pipe.send("ready")
    loop = asyncio.get_running_loop()
    while (question := await loop.run_in_executor(None, pipe.recv)) is not None:
        what, *about = question
        pipe.send(await (_move(batched, topic, *about) if what == "seconds" else _wait_for_each(prompt, topic, *about)))
    for producer in producers:
        await producer.stop()


async def _move(producer: Any, topic: str, count: int, nbytes: int) -> float:
    value, acks = bytes(nbytes), list[Any]()
    began = time.monotonic()
    batch = producer.create_batch()
    for _ in range(count):
        if batch.append(key=None, value=value, timestamp=None) is None:
            acks.append(await producer.send_batch(batch, topic, partition=0))
            batch = producer.create_batch()
            batch.append(key=None, value=value, timestamp=None)
    acks.append(await producer.send_batch(batch, topic, partition=0))
    await asyncio.gather(*acks)
    return time.monotonic() - began


async def _wait_for_each(producer: Any, topic: str, count: int, nbytes: int, gap_s: float) -> list[float]:
    value, latencies = bytes(nbytes), list[float]()
    for _ in range(count):
        await asyncio.sleep(gap_s)
        began = time.monotonic()
        await producer.send_and_wait(topic, value, partition=0)
        latencies.append(time.monotonic() - began)
    return latencies
