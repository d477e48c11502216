"""Brokers, publishers and replicas in processes of their own, of which any may be killed at any moment."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import paramstream as ps
from paramstream.consumers.events import Event

from .child import Child
from .family import Family
from .journal import JournalReader
from .load import TABLE, TABLE_DIM, TABLE_DTYPE, TTLS_S
from .patience import patiently
from .reference import Place, Reference

TOPICS = {"model": "write_back", "safe": "write_through", "cache": "none"}
STATE_PARTITIONS = 3
START_S = 60.0
"""Enough for a child to start and be served on a machine that is very busy, and behind a Kafka that starts."""
END_S = 60.0

PUBLISHERS = {"p0": ("weights",), "p1": ("observes",), "p2": ("observes",)}
REPLICAS = {"r0": "causal", "r1": "pram"}


class Home(Protocol):
    """Where the brokers' log lies, and what may befall it."""

    @property
    def brokers(self) -> tuple[str, ...]: ...

    @property
    def others(self) -> tuple[str, ...]:
        """What may come to harm beside brokers, publishers and replicas."""
        ...

    @property
    def progress_s(self) -> float:
        """Within this every publisher that lives goes on after a kill."""
        ...

    @property
    def refusals(self) -> tuple[str, ...]:
        """The codes of errors that a call may be refused with."""
        ...

    def may_lose(self, persistence: str) -> bool:
        """What was accepted under `persistence` may be lost, and is called so."""
        ...

    def start_broker(self, name: str, endpoint: str, errors: Path) -> Child: ...

    def kill_broker(self, child: Child, *, is_up: bool) -> None: ...

    def harm(self, what: str) -> None:
        """Do to one of `others` what can be done to it, and mend it."""
        ...

    def read(self, topic: ps.TopicInfo) -> Reference:
        """What the log holds of `topic`, read without a broker."""
        ...


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


class Tail:
    """A subscription that lives through everything."""

    def __init__(self, subscription: ps.Subscription) -> None:
        self._subscription = subscription
        self.events: dict[Place, Event] = {}
        """What it yielded, in order, without what it then called lost."""
        self.lost = 0
        """How many it called lost."""

    def follow(self) -> None:
        """Take what it has by now."""
        while True:
            try:
                event = self._subscription.next(0)
            except ps.ParamstreamTimeout:
                return
            if event.kind == "lost":
                gone = [at for at in self.events if at[0] == event.partition and at[1] > event.position]
                for at in gone:
                    del self.events[at]
                self.lost += len(gone)
                continue
            at = event.partition, event.position
            assert at not in self.events, f"{event} came twice"
            self.events[at] = event


class World(Family):
    """All of it."""

    def __init__(self, folder: Path, home: Home, chance: random.Random) -> None:
        super().__init__(START_S)
        self.chance = chance
        self.folder = folder
        self.home = home
        self.endpoints = {name: f"tcp://127.0.0.1:{free_port()}" for name in home.brokers}
        self.lives = dict.fromkeys(PUBLISHERS, 0)
        self.journals: dict[str, JournalReader] = {}
        """By producer and life: `p0.3`."""
        self.lived: set[str] = set()
        """Those of `journals` whose publisher was never killed."""
        self.tails: dict[str, Tail] = {}
        """By topic."""

    @property
    def victims(self) -> tuple[str, ...]:
        """What may be killed; brokers and the log itself twice as likely."""
        return (*self.home.brokers, *self.home.others) * 2 + (*PUBLISHERS, *REPLICAS)

    # --- life and death ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for name in self.home.brokers:
            self.spawn(name)
        self.await_all_up()
        history = self.history_of("client")
        self.client = client = ps.connect(list(self.endpoints.values()), history=history, timeout=START_S)
        for topic, persistence in TOPICS.items():
            self._create(client, topic, persistence)
        for name in (*PUBLISHERS, *REPLICAS):
            self.spawn(name)
        self.await_all_up()

    def _create(self, client: ps.Client, topic: str, persistence: str) -> None:
        """While brokers find each other, any call may go without an answer."""
        patiently(
            lambda: client.create_topic(topic, STATE_PARTITIONS, persistence, retain_versions=10_000, exist_ok=True)
        )
        if persistence != "none":
            patiently(lambda: client.create_table(topic, TABLE, TABLE_DIM, TABLE_DTYPE, ps.SGD(1.0), exist_ok=True))
        self.tails[topic] = Tail(patiently(lambda: client.subscribe(topic, start="earliest")))

    def spawn(self, name: str) -> None:
        errors = self.folder / f"{name}.stderr"
        endpoints, topics = ",".join(self.endpoints.values()), ",".join(TOPICS)
        if name in self.home.brokers:
            child = self.home.start_broker(name, self.endpoints[name], errors)
        elif name in PUBLISHERS:
            self.lives[name] += 1
            life = self.lives[name]
            path = self.folder / f"{name}.{life}.journal"
            self.journals[f"{name}.{life}"] = JournalReader(path)
            self.lived.add(f"{name}.{life}")
            seed = self.chance.getrandbits(32)
            history = self.history_of(name)
            child = Child(
                "publisher", endpoints, topics, name, life, path, history, seed, *PUBLISHERS[name], errors=errors
            )
        else:
            child = Child("replica", endpoints, topics, name, REPLICAS[name], self.history_of(name), errors=errors)
        self.children[name] = child
        self.starting.add(name)

    def history_of(self, name: str) -> Path:
        """What all lives of a publisher or replica have recorded."""
        return self.folder / f"{name}.jsonl"

    def kill(self, name: str) -> None:
        """SIGKILL; of what is none of our children, what its home does to it."""
        if name in self.home.others:
            self.home.harm(name)
            return
        child = self.children.pop(name)
        if name in self.home.brokers:
            self.home.kill_broker(child, is_up=name not in self.starting)
        else:
            child.kill()
        self.starting.discard(name)
        self.lived.discard(f"{name}.{self.lives.get(name, 0)}")

    def check(self) -> None:
        """No child has ended by itself."""
        for child in self.children.values():
            child.check()

    def close(self) -> None:
        super().close()
        for journal in self.journals.values():
            journal.close()

    # --- what is going on ---------------------------------------------------------------------------------------------------

    def read_journals(self, round_number: int) -> None:
        """What was called since the last time was called in that round."""
        for journal in self.journals.values():
            journal.round = round_number
            journal.read()

    def await_progress(self) -> None:
        """Every living publisher gets something durable that was not durable before."""
        self.await_all_up()
        waiting = {name: journal for name, journal in self.journals.items() if name in self.lived}
        for journal in waiting.values():
            journal.read()
        before = {name: journal.durable for name, journal in waiting.items()}
        deadline = time.monotonic() + self.home.progress_s
        while any(journal.durable == before[name] for name, journal in waiting.items()):
            self.check()
            stands = "; ".join(f"{name}: {journal}" for name, journal in waiting.items())
            assert time.monotonic() < deadline, f"a living publisher does not go on: {stands}"
            time.sleep(0.01)
            for journal in waiting.values():
                journal.read()
            self.follow_tails()

    def follow_tails(self) -> None:
        for tail in self.tails.values():
            tail.follow()

    # --- the end --------------------------------------------------------------------------------------------------------------

    def finish(self) -> tuple[dict[str, Reference], dict[str, str]]:
        """Stop everything in order: (topic → what stands, replica → its digest once it has applied everything).

        What stands is read from the log once the brokers have ended; of a topic that the log does not hold, it is what its tail
        saw and never called lost.
        """
        assert self.client is not None
        self.await_all_up()
        for name in PUBLISHERS:
            self.children[name].send("stop", within=END_S)
        for name in PUBLISHERS:
            answer = self.children[name].read(2 * END_S)
            assert not answer["timed_out"], f"{name} could not flush: {answer['errors']}"
            self.children.pop(name).end(END_S)
        # What ends soon has ended by the marks: nothing that an owner writes behind them removes any more.
        time.sleep(2 * TTLS_S[0])
        until = self._mark()
        self._await_tails(until)
        digests = {name: self._digest_of(name, until) for name in REPLICAS}
        topics = patiently(self.client.topics)
        for name in REPLICAS:
            self.children.pop(name).end(END_S)
        for name in self.home.brokers:
            self.children.pop(name).end(END_S)
        return {topic.name: self._standing(topic) for topic in topics}, digests

    def _mark(self) -> ps.VersionVector[str]:
        """Write a last entry to every state partition: where they, and the last commits, stand."""
        assert self.client is not None
        marks: ps.VersionVector[str] = ps.VersionVector()
        for topic in TOPICS:
            with patiently(partial(self.client.publisher, topic, "marker", timeout=END_S)) as pub:
                receipt = pub.put_many({f"marker/{n}": f"marker.1.1/{n}".encode() for n in range(64)})
                pub.flush(END_S)
            assert len(receipt.positions) == STATE_PARTITIONS
            marks = marks.merge(receipt.positions)
            if versions := patiently(partial(self.client.versions, topic)):
                marks = marks.merge({(topic, STATE_PARTITIONS): versions[-1].position})
        return marks

    def _await_tails(self, until: ps.VersionVector[str]) -> None:
        deadline = time.monotonic() + END_S
        while missing := list(self._unseen(until)):
            assert time.monotonic() < deadline, f"the standing subscriptions never saw {missing}"
            self.follow_tails()
            time.sleep(0.01)

    def _unseen(self, until: ps.VersionVector[str]) -> Iterator[str]:
        for (topic, number), at in until.items():
            if (number, at) not in self.tails[topic].events:
                yield f"{topic}/{number} at {at}"

    def _digest_of(self, name: str, until: ps.VersionVector[str]) -> str:
        waited = self.children[name].ask("wait", 2 * END_S, vector=str(until), within=END_S)
        state = self.children[name].ask("state", END_S)
        assert not waited["error"], f"{name} does not reach the end: {waited['error']}; {state['status']}"
        assert not state["torn"], f"{name} showed {state['torn']} torn versions"
        assert not state["stopped"], f"{name} stopped: {state['stopped']}"
        return str(state["digest"])

    def _standing(self, topic: ps.TopicInfo) -> Reference:
        logged = self.home.read(topic)
        if topic.persistence != "none":
            return logged
        assert not logged.events, f"the log holds events of {topic.name}, and is not to"
        shown = Reference(topic.name)
        for event in self.tails[topic.name].events.values():
            shown.take(event)
        return shown
