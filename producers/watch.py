"""Follows the events of receipts that came from other processes: the broker tells once they are durable, or lost."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import InvalidStateError
from dataclasses import dataclass

from ..consistency.position import show
from ..errors import ConnectFailed, EventLost, NotDurable, OutcomeUnknown, ParamstreamError
from ..transport.calls import AwaitDurable
from .directory import Directory, Uplink
from .receipt import Outcome, ReceiptRecord


@dataclass(frozen=True, slots=True)
class _Awaited:
    record: ReceiptRecord
    call: AwaitDurable
    future: Outcome


class Watch:
    """A `receipt.Follower` over one link. `durable` may be called from any thread, everything else is the link's to call.

    A question that went with its connection is asked again on the next one.
    """

    def __init__(self, link: Uplink, directory: Directory) -> None:
        self._link = link
        self._directory = directory
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._awaited: dict[int, _Awaited] = {}

    def durable(self, record: ReceiptRecord) -> Outcome:
        """Raises `NotDurable` at once where a topic of the record has persistence "none", `UnknownTopic` where one is gone."""
        for name, _ in record.positions:
            if self._directory.topic(name).persistence == "none":
                raise NotDurable(
                    'nothing of a topic with persistence "none" becomes durable', topic=name, remedy="Use `accepted`"
                )
        positions = sorted(self._directory.to_ids(record.positions).items())
        call = AwaitDurable(tuple((topic, number, at) for (topic, number), at in positions))
        awaited = _Awaited(record, call, Outcome(f"durability of events of {record.producer!r}"))
        with self._lock:
            number = next(self._numbers)
            self._awaited[number] = awaited
        self._ask(number, awaited)
        return awaited.future

    def connected(self) -> None:
        """A new connection: ask again."""
        with self._lock:
            pending = list(self._awaited.items())
        for number, awaited in pending:
            self._ask(number, awaited)

    def close(self) -> None:
        """The client is closed: nobody will tell any more."""
        with self._lock:
            pending, self._awaited = self._awaited, {}
        for awaited in pending.values():
            _fail(
                awaited.future, OutcomeUnknown("the client was closed", remedy="Attach the receipt to another client")
            )

    def _ask(self, number: int, awaited: _Awaited) -> None:
        def done(lost: list[tuple[int, int, int]] | None, error: ParamstreamError | None) -> None:
            if isinstance(error, OutcomeUnknown | ConnectFailed):
                return
            with self._lock:
                if self._awaited.pop(number, None) is None:
                    return
            if error is not None:
                _fail(awaited.future, error)
            elif lost:
                _fail(awaited.future, self._lost(awaited.record, *lost[0]))
            else:
                _complete(awaited)

        self._link.request_async(awaited.call, list[tuple[int, int, int]], done)

    def _lost(self, record: ReceiptRecord, topic: int, number: int, at: int) -> EventLost:
        return EventLost(
            f"the event of producer {record.producer!r} at {show(at)} was accepted, and its epoch ended below it",
            topic=self._directory.name_of(topic),
            partition=number,
            position=at,
            version=record.version,
        )


def _complete(awaited: _Awaited) -> None:
    try:
        awaited.future.set_result(awaited.record.vector)
    except InvalidStateError:
        # The user has cancelled it.
        return


def _fail(future: Outcome, error: ParamstreamError) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        return
