"""A broker, publishers and replicas in processes of their own, of which any may be killed at any moment."""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import paramstream as ps
from paramstream.consumers.events import Event

from .child import Child
from .journal import JournalReader
from .power import cut_back
from .reference import Place, Reference, read_log

TOPIC = "model"
STATE_PARTITIONS = 3
LOG_LIMIT = 1 << 30
START_S = 60.0
"""Enough for a child to start and be served on a machine that is very busy."""
PROGRESS_S = 30.0
"""Within this every publisher that lives goes on after a kill."""
END_S = 60.0

PUBLISHERS = {"p0": ("weights",), "p1": ("observes",)}
REPLICAS = {"r0": "causal", "r1": "pram"}


def free_port() -> int:
    """A port that a broker can have again after each restart: below those that the system gives away."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


class World:
    """All of it, under one seed. Whatever happens, `close` kills every child by its own pid."""

    def __init__(self, folder: Path, seed: int, *, persistence: str = "write_back", power: bool = False) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.persistence = persistence
        self.power = power
        """A broker's death is a power failure each time: files lose what was not synced, and the machine boots anew."""
        self.may_lose = power and persistence == "write_back"
        """Something that was accepted may be lost, and is called so."""
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.boots = 0
        self.lives = dict.fromkeys(PUBLISHERS, 0)
        self.children: dict[str, Child] = {}
        self.starting: set[str] = set()
        """Children that have not said that they are up."""
        self.journals: dict[str, JournalReader] = {}
        """By producer and life: `p0.3`."""
        self.client: ps.Client | None = None
        self.tail: ps.Subscription | None = None
        self.tailed: dict[Place, Event] = {}
        """What the subscription that lives through everything yielded, without what it then called lost."""
        self.tail_start = 0
        self.lost_events = 0

    # --- life and death ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.spawn("broker")
        self.await_up("broker")
        self.client = client = ps.connect(self.endpoint, timeout=START_S)
        client.create_topic(TOPIC, STATE_PARTITIONS, self.persistence, retain_versions=10_000)
        self.tail = client.subscribe(TOPIC, start="earliest")
        for name in (*PUBLISHERS, *REPLICAS):
            self.spawn(name)
        for name in list(self.starting):
            self.await_up(name)

    def spawn(self, name: str) -> None:
        errors = self.folder / f"{name}.stderr"
        if name == "broker":
            boot = f"boot-{self.boots}"
            child = Child("broker", self.folder / "log", self.endpoint, boot, LOG_LIMIT, errors=errors)
        elif name in PUBLISHERS:
            self.lives[name] += 1
            life = self.lives[name]
            path = self.folder / f"{name}.{life}.journal"
            self.journals[f"{name}.{life}"] = JournalReader(path)
            seed = self.chance.getrandbits(32)
            child = Child("publisher", self.endpoint, TOPIC, name, life, path, seed, *PUBLISHERS[name], errors=errors)
        else:
            child = Child("replica", self.endpoint, TOPIC, name, REPLICAS[name], errors=errors)
        self.children[name] = child
        self.starting.add(name)

    def kill(self, name: str) -> None:
        self.children.pop(name).kill()
        self.starting.discard(name)
        if name == "broker" and self.power:
            self.boots += 1
            cut_back(self.folder / "log", self.chance)

    def await_up(self, name: str) -> None:
        if name in self.starting:
            self.children[name].read(START_S)
            self.starting.discard(name)

    def check(self) -> None:
        """No child has ended by itself."""
        for child in self.children.values():
            child.check()

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
        for journal in self.journals.values():
            journal.close()
        if self.client is not None:
            self.client.close(timeout=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what is going on ---------------------------------------------------------------------------------------------------

    def living(self) -> list[JournalReader]:
        """The journals of the publishers that are alive."""
        return [self.journals[f"{name}.{self.lives[name]}"] for name in PUBLISHERS]

    def name_of(self, journal: JournalReader) -> str:
        return next(name for name, known in self.journals.items() if known is journal)

    def await_progress(self) -> None:
        """Every living publisher gets something durable that was not durable before."""
        for name in list(self.starting):
            self.await_up(name)
        waiting = self.living()
        for journal in waiting:
            journal.read()
        before = [journal.durable for journal in waiting]
        deadline = time.monotonic() + PROGRESS_S
        while any(journal.durable == was for journal, was in zip(waiting, before, strict=True)):
            self.check()
            stands = "; ".join(f"{self.name_of(journal)}: {journal}" for journal in waiting)
            assert time.monotonic() < deadline, f"a living publisher does not go on: {stands}"
            time.sleep(0.01)
            for journal in waiting:
                journal.read()
            self.follow_tail()

    def follow_tail(self) -> None:
        """Take what the standing subscription has by now."""
        assert self.tail is not None
        while True:
            try:
                self._tailed(self.tail.next(0))
            except ps.ParamstreamTimeout:
                return

    def _tailed(self, event: Event) -> None:
        if event.kind == "lost":
            gone = [at for at in self.tailed if at[0] == event.partition and at[1] > event.position]
            for at in gone:
                del self.tailed[at]
            self.lost_events += len(gone)
            return
        at = event.partition, event.position
        assert at not in self.tailed, f"{event} came twice"
        self.tailed[at] = event

    # --- the end --------------------------------------------------------------------------------------------------------------

    def finish(self) -> tuple[Reference, dict[str, str]]:
        """Stop the publishers, flush, and read the log: (reference, replica → its digest once it has applied everything)."""
        assert self.client is not None and self.tail is not None
        for name in list(self.starting):
            self.await_up(name)
        for name in PUBLISHERS:
            answer = self.children[name].ask("stop", 2 * END_S, within=END_S)
            if not self.may_lose:
                assert not answer["errors"], f"{name} could not flush: {answer['errors']}"
            self.children.pop(name).end(END_S)
        until = self._mark()
        reference = read_log(self.client, TOPIC, until, END_S)
        deadline = time.monotonic() + END_S
        while not all(self.tailed.keys() >= {at} for at in reference.events) and time.monotonic() < deadline:
            self.follow_tail()
            time.sleep(0.01)
        for journal in self.journals.values():
            journal.read()
        return reference, {name: self._digest_of(name, until) for name in REPLICAS}

    def _mark(self) -> ps.VersionVector[str]:
        """Write a last entry to every state partition: where they, and the last commit, stand."""
        assert self.client is not None
        with self.client.publisher(TOPIC, producer="marker", timeout=END_S) as pub:
            receipt = pub.put_many({f"marker/{n}": f"marker.1.1/{n}".encode() for n in range(64)})
            pub.flush(END_S)
        marks = receipt.positions
        assert len(marks) == STATE_PARTITIONS
        last = self.client.versions(TOPIC)[-1].position
        return marks.merge({(TOPIC, STATE_PARTITIONS): last})

    def _digest_of(self, name: str, until: ps.VersionVector[str]) -> str:
        waited = self.children[name].ask("wait", 2 * END_S, vector=str(until), within=END_S)
        state = self.children[name].ask("state", END_S)
        assert not waited["error"], f"{name} does not reach the end: {waited['error']}; {state['status']}"
        assert not state["torn"], f"{name} showed {state['torn']} torn versions"
        assert not state["stopped"], f"{name} stopped: {state['stopped']}"
        return str(state["digest"])
