"""How a client looks up: it finds replicas that serve, splits the keys among them, asks all at once, and puts the answers in order.

All of it happens in the calling thread, on connections that are its own meanwhile. What does not answer, or not yet, is asked of another
replica as long as the deadline allows.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Protocol

import numpy as np
import zmq

from ...errors import ConnectFailed, CorruptLog, ParamstreamError, ParamstreamTimeout, UnknownTopic
from ...transport.calls import Call, ListReplicas, ListTopics, TopicRecord
from ...transport.lookup_lines import Line, Lines
from ...transport.lookups import Declined, Need, decode_answer
from ...transport.messages import Report
from .questions import Places, Question
from .routes import Route, Routes

REFRESH_S = 1.0
"""Look-ups have the reports of replicas asked for again when they are older than that, ..."""

SOON_S = 0.1
"""... or than that, where a look-up finds nobody to ask, or only who has just failed."""

LOOK_S = 0.05
"""How long a look-up waits for answers before it looks whether a replica has gone."""

PATIENCE_S = 1.0
"""A replica that has not answered for so long is left, where another one can be asked."""

ASIDE_S = 0.5
"""How long a question may wait at a replica for what that has not applied, where another one can be asked."""

ALONE_S = 30.0
"""And where none can."""

WINDOW = 4
"""Questions open at one replica: enough that it never waits for the next one."""


class Asking(Protocol):
    """The part of a client's link that look-ups need."""

    def request_async(self, call: Call, kind: Any, done: Callable[[Any, ParamstreamError | None], None]) -> None: ...


@dataclass(slots=True)
class _Leg:
    """What one replica is asked in one look-up."""

    line: Line
    numbers: tuple[int, ...]
    """The partitions of its keys."""
    left: deque[Places]
    """Not asked yet."""
    heard: float
    """When it last answered, or was first asked."""
    open: dict[int, Places] = field(default_factory=dict[int, Places])
    """Number of a question → what it asks for."""
    useless: bool = False
    """Its connection is of no use to anybody any more."""

    def unanswered(self) -> list[Places]:
        return [*self.open.values(), *self.left]


class Reads:
    """Of one client. Thread-safe."""

    def __init__(self, link: Asking, lines: Lines) -> None:
        self._link = link
        self._lines = lines
        self._changed = threading.Condition()
        """Guards what follows."""
        self._routes = Routes()
        self._asked_at: dict[int, float] = {}
        """Topic → when its replicas were last asked for."""
        self._gone: set[int] = set()
        """Topics that were deleted."""
        self._turns = itertools.count()

    def gather(
        self, topic: TopicRecord, question: Question, needs: Mapping[int, Need], timeout: float, deadline: float
    ) -> dict[int, int]:
        """Have all of `question` answered; returns, of each partition asked, what all its answers have seen.

        Raises `ParamstreamTimeout` that says who was awaited, or that nobody serves a partition; `UnknownTopic`, `EventLost`.
        """
        look = _Look(self, topic, question, needs, next(self._turns), deadline)
        try:
            return look.run()
        except ParamstreamTimeout as late:
            late.problem = f"{question.what} did not come within {timeout:g} s: {late.problem}"
            raise
        except ParamstreamError as error:
            error.topic = error.topic or topic.name
            raise

    # --- what the looks share ---------------------------------------------------------------------------------------------------

    def check(self, topic: TopicRecord) -> None:
        """Raises where it makes no sense to go on."""
        if self._lines.closed:
            raise ParamstreamError("the client is closed", remedy="Connect again")
        if topic.id in self._gone:
            raise UnknownTopic("the topic was deleted", topic=topic.name)

    def candidates(self, topic: TopicRecord, number: int, needed: int, turn: int) -> list[Route]:
        now = time.monotonic()
        with self._changed:
            found = self._routes.candidates((topic.id, number), needed, turn, now)
        self._refresh(topic.id, now, is_well=bool(found) and not found[0].failures)
        return found

    def trouble(self, topic: TopicRecord, number: int) -> str:
        with self._changed:
            return self._routes.describe((topic.id, number))

    def line(self, endpoint: str) -> Line:
        return self._lines.take(endpoint)

    def end(self, leg: _Leg) -> None:
        """Its line is of use to others where no answer of it is to come any more."""
        if leg.open or leg.useless:
            self._lines.drop(leg.line)
        else:
            self._lines.give(leg.line)

    def answered(self, endpoint: str) -> None:
        with self._changed:
            self._routes.answered(endpoint)

    def failed(self, endpoint: str, trouble: str) -> None:
        with self._changed:
            self._routes.failed(endpoint, trouble, time.monotonic())

    def wait(self, most_s: float) -> None:
        """Until something is heard of replicas, at most so long."""
        with self._changed:
            self._changed.wait(most_s)

    def _refresh(self, topic: int, now: float, *, is_well: bool) -> None:
        """Have brokers tell of replicas, and, where nobody is well, whether there is the topic still."""
        older_s = REFRESH_S if is_well else SOON_S
        with self._changed:
            if now - self._asked_at.get(topic, -older_s) < older_s:
                return
            self._asked_at[topic] = now

        def listed(topics: list[TopicRecord] | None, error: ParamstreamError | None) -> None:
            if topics is not None and all(record.id != topic for record in topics):
                with self._changed:
                    self._gone.add(topic)
                    self._changed.notify_all()

        self._link.request_async(ListReplicas(topic), list[Report], self._told)
        if not is_well:
            self._link.request_async(ListTopics(), list[TopicRecord], listed)

    def _told(self, reports: list[Report] | None, error: ParamstreamError | None) -> None:
        if reports is None:
            return
        with self._changed:
            unused = self._routes.learn(reports, time.monotonic())
            self._changed.notify_all()
        for endpoint in unused:
            self._lines.forget(endpoint)


class _Look:
    """One look-up, from its first question to its last answer."""

    def __init__(
        self,
        reads: Reads,
        topic: TopicRecord,
        question: Question,
        needs: Mapping[int, Need],
        turn: int,
        deadline: float,
    ) -> None:
        self._reads = reads
        self._topic = topic
        self._question = question
        self._needs = needs
        self._turn = turn
        self._deadline = deadline
        places = np.arange(len(question.partitions))
        self._pending: list[Places] = [places] if len(places) else []
        """Of no leg yet."""
        self._legs: list[_Leg] = []
        self._seen: dict[int, int] = {}

    def run(self) -> dict[int, int]:
        try:
            while self._pending or self._legs:
                self._reads.check(self._topic)
                self._assign()
                for leg in self._legs:
                    self._ask(leg)
                self._await()
                for leg in list(self._legs):
                    self._collect(leg)
        finally:
            for leg in self._legs:
                self._reads.end(leg)
        return self._seen

    def _assign(self) -> None:
        """Give what is pending to replicas: as few as serve all of it."""
        if not self._pending:
            return
        pending = self._pending[0] if len(self._pending) == 1 else np.sort(np.concatenate(self._pending))
        self._pending = []
        numbers = self._question.partitions[pending]
        by_endpoint: dict[str, list[int]] = {}
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            by_endpoint.setdefault(self._choose(number, by_endpoint), []).append(number)
        whose = np.empty(int(numbers.max()) + 1, np.int64)
        for index, of in enumerate(by_endpoint.values()):
            whose[of] = index
        chosen = whose[numbers]
        for index, (endpoint, of) in enumerate(by_endpoint.items()):
            places = pending[chosen == index]
            if not endpoint or not self._begin(endpoint, tuple(of), places):
                self._pending.append(places)

    def _choose(self, number: int, chosen: Container[str]) -> str:
        """Whom to ask for a partition: one that is asked for others anyway, where it will do. Empty where there is nobody."""
        need = self._needs.get(number)
        needed = 0 if need is None else need.position
        able = self._reads.candidates(self._topic, number, needed, self._turn)
        for route in able:
            if route.endpoint in chosen and not route.failures and route.applied[self._topic.id, number] >= needed:
                return route.endpoint
        return able[0].endpoint if able else ""

    def _begin(self, endpoint: str, numbers: tuple[int, ...], places: Places) -> bool:
        try:
            line = self._reads.line(endpoint)
        except ConnectFailed as error:
            self._reads.failed(endpoint, error.problem)
            return False
        self._legs.append(_Leg(line, numbers, deque([places]), time.monotonic()))
        return True

    def _ask(self, leg: _Leg) -> None:
        while leg.left and len(leg.open) < WINDOW:
            asked, rest = self._question.cut(leg.left.popleft())
            number = leg.line.next_number()
            # What it lacks is to be told in time.
            left_s = max(0.0, self._deadline - time.monotonic()) * 0.9
            needs = tuple(
                need for number, need in self._needs.items() if number in {*leg.numbers, self._topic.partitions}
            )
            wait_s = min(left_s, ALONE_S if needs and not self._others(leg) else ASIDE_S)
            frame = self._question.frame(number, self._topic.id, leg.numbers, needs, wait_s, asked)
            if not leg.line.send(frame):
                leg.left.appendleft(np.concatenate([asked, rest]))
                return
            leg.open[number] = asked
            if len(rest):
                leg.left.appendleft(rest)

    def _await(self) -> None:
        """Until an answer is there, or it is time to look."""
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise self._late()
        if not self._legs:
            if self._pending:
                self._reads.wait(min(left_s, LOOK_S))
            return
        poller = zmq.Poller()
        for leg in self._legs:
            poller.register(leg.line.socket, zmq.POLLIN)
        poller.poll(ceil(min(left_s, LOOK_S) * 1000))

    def _collect(self, leg: _Leg) -> None:
        """Take the answers that are there."""
        gone = leg.line.gone()
        try:
            while leg.open and (frame := leg.line.receive()) is not None:
                self._take(leg, frame)
        except CorruptLog as garbage:
            self._leave(leg, garbage.problem, is_useless=True)
            return
        except _Declined as declined:
            self._leave(leg, declined.reason)
            return
        if not leg.open and not leg.left:
            self._reads.answered(leg.line.endpoint)
            self._legs.remove(leg)
            self._reads.end(leg)
        elif gone:
            self._leave(leg, "the connection to it is gone", is_useless=True)
        elif time.monotonic() - leg.heard > PATIENCE_S and self._others(leg):
            self._leave(leg, f"it did not answer for {PATIENCE_S:g} s", is_useless=True)

    def _take(self, leg: _Leg, frame: memoryview) -> None:
        answer, bulk = decode_answer(frame)
        asked = leg.open.get(answer.id)
        if asked is None:
            raise CorruptLog(f"it answered a question {answer.id} that is not open")
        if isinstance(answer, Declined):
            del leg.open[answer.id]
            leg.left.append(asked)
            if answer.elsewhere:
                raise _Declined(answer.error.problem)
            raise answer.error.raised()
        count = self._question.take(answer, bulk, asked)
        del leg.open[answer.id]
        leg.heard = time.monotonic()
        if count < len(asked):
            leg.left.appendleft(asked[count:])
        for number, position in answer.seen:
            self._seen[number] = min(position, self._seen.get(number, position))

    def _leave(self, leg: _Leg, trouble: str, *, is_useless: bool = False) -> None:
        """What it has not answered is for others."""
        self._reads.failed(leg.line.endpoint, trouble)
        self._pending += leg.unanswered()
        self._legs.remove(leg)
        leg.useless = is_useless
        self._reads.end(leg)

    def _others(self, leg: _Leg) -> bool:
        """Somebody else can be asked for each of its partitions."""
        return all(
            any(
                route.endpoint != leg.line.endpoint
                for route in self._reads.candidates(self._topic, number, 0, self._turn)
            )
            for number in leg.numbers
        )

    def _late(self) -> ParamstreamTimeout:
        missing = np.concatenate([*self._pending, *(places for leg in self._legs for places in leg.unanswered())])
        number = int(self._question.partitions[missing].min())
        trouble = self._reads.trouble(self._topic, number)
        if trouble:
            problem, remedy = f"of those that serve the state partition none has answered: {trouble}", ""
        else:
            problem = "no replica serves the state partition, as far as the broker has told"
            remedy = "Start one: rep.serve(ADDR), or paramstream replica --serve ADDR"
        return ParamstreamTimeout(problem, topic=self._topic.name, partition=number, remedy=remedy)


class _Declined(Exception):
    """Another replica is to be asked."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
