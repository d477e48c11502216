"""Calls without their whole answer: of which brokers each was asked, and what they have said so far."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..consistency.vector import PartitionId
from ..errors import CorruptLog, NotOwner, OutcomeUnknown, ParamstreamError, ParamstreamTimeout
from .calls import Call
from .connection import Connection
from .fleet import Fleet
from .merging import merged
from .messages import Request, Response, decode_result, encode_message

Done = Callable[[Any, ParamstreamError | None], None]


class Question:
    """One call. `ask`, `go_on` and `send_rest` belong to whoever holds the link's lock, all else to the link's thread."""

    def __init__(self, number: int, call: Call, kind: Any, done: Done, deadline: float, *, waits: bool) -> None:
        """`waits`: somebody blocks for the answer until `deadline`, over more than one fleet if need be."""
        self.number = number
        self.name = type(call).__name__
        self.done = done
        self.deadline = deadline
        self.waits = waits
        self._call = call
        self._kind = kind
        self._fleet: Fleet | None = None
        self._later: list[list[Connection]] = []
        self._asked: list[Connection] = []
        self._unsent: list[Connection] = []
        self._answers: dict[Connection, Any] = {}
        self._may_go_again = call.may_be_repeated
        """Whoever was asked has done nothing, or would do nothing the second time."""

        self.was_asked = False
        """Some fleet was asked at some time."""

    @property
    def is_asked(self) -> bool:
        """The answer of a fleet is still to be expected."""
        return self._fleet is not None

    def ask(self, fleet: Fleet) -> bool:
        """Send it to all brokers of `fleet` that it is for at first. False where one took it not yet (`send_rest`)."""
        self._fleet, self.was_asked = fleet, True
        self._asked, self._answers = [], {}
        first, *self._later = fleet.stages(self._call)
        return self._send_to(first)

    def send_rest(self) -> None:
        """Send it to those that took nothing more when they were asked."""
        if self._unsent:
            self._send()

    @property
    def goes_on(self) -> bool:
        """All who were asked have answered, and the turn of others comes now."""
        return bool(self._later) and len(self._answers) == len(self._asked)

    def go_on(self) -> None:
        """Ask those whose turn comes."""
        self._call, self._may_go_again = self._call.repeated(), True
        self._send_to(self._later.pop(0))

    def take(self, connection: Connection, response: Response) -> tuple[Any, ParamstreamError | None] | None:
        """One broker's answer. (answer, error) where the call has its answer by that; None where others still owe theirs."""
        fleet = self._fleet
        if fleet is None or connection not in self._asked or connection in self._answers:
            return None
        if response.error is not None:
            error = response.error.raised()
            self._may_go_again = self._may_go_again or isinstance(error, NotOwner)
            if fleet.only is None:
                error.problem = f"{connection.address}: {error.problem}"
            return None, error
        try:
            self._answers[connection] = decode_result(response.result, self._kind)
        except CorruptLog as error:
            return None, error
        if self._later or len(self._answers) < len(self._asked):
            return None
        asked = self._asked

        def owner_of(partition: PartitionId) -> int:
            return asked.index(fleet.owner(partition))

        return merged(self._call, [self._answers[each] for each in asked], owner_of), None

    def lose(self) -> bool:
        """The fleet is gone. Whether the call waits for the next one."""
        again = self.waits and (self._may_go_again or self._fleet is None)
        self._fleet = None
        self._later, self._unsent = [], []
        return again

    def _send_to(self, connections: list[Connection]) -> bool:
        self._asked += connections
        self._unsent = connections
        return self._send()

    def _send(self) -> bool:
        data = encode_message(Request(self.number, self._call))  # type: ignore[arg-type]
        self._unsent = [each for each in self._unsent if not each.send_up(data)]
        return not self._unsent


class Questions:
    """All questions of a link. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Question] = {}
        self._over = ""

    def add(self, question: Question) -> None:
        """Raises `ParamstreamError` where nobody answers any more."""
        with self._lock:
            if not self._over:
                self._open[question.number] = question
                return
        raise _unsent(question, self._over)

    def get(self, number: int) -> Question | None:
        with self._lock:
            return self._open.get(number)

    def remove(self, question: Question) -> bool:
        """False where somebody else has removed it."""
        with self._lock:
            return self._open.pop(question.number, None) is not None

    def all(self) -> list[Question]:
        with self._lock:
            return list(self._open.values())

    def fail_overdue(self, now: float) -> None:
        """Those that somebody waits for, he gives up himself."""
        for question in self.all():
            if not question.waits and now > question.deadline and self.remove(question):
                question.done(None, ParamstreamTimeout(f"the broker did not answer {question.name} in time"))

    def lost(self, reason: str) -> None:
        """The fleet is gone: what was asked of it is unknown, unless it was refused, and can be asked again."""
        for question in self.all():
            if not question.lose() and self.remove(question):
                question.done(None, _unknown(reason))

    def end(self, reason: str) -> None:
        """Nobody answers any more."""
        with self._lock:
            self._over = reason
        for question in self.all():
            if self.remove(question):
                question.done(None, _unknown(reason) if question.was_asked else _unsent(question, reason))


def _unknown(reason: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"the connection went before the broker answered: {reason}", remedy="Look, and ask again")


def _unsent(question: Question, reason: str) -> ParamstreamError:
    return ParamstreamError(f"{question.name} was not sent: {reason}", remedy="Connect again")
