"""Receipts: what a publish hands back. Cheap to make; a future exists only once it is asked for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from threading import RLock
from typing import Any, Protocol, cast
from urllib.parse import quote, unquote

from ..consistency.vector import VersionVector
from ..errors import InvalidEvent, NotDurable, OutcomeUnknown, ParamstreamError, ParamstreamTimeout
from ..events.kinds import PartRef
from ..events.limits import check_name, check_version
from ..transport.waiting import bounded
from .calls import Call
from .directory import Directory

_PREFIX = "receipt:1"
_NUMBER = re.compile(r"[0-9]{1,20}")


class Outcome(Future[VersionVector[str]]):
    """A future of a receipt: the closed vector, by topic names. Can be awaited in any event loop, by any number of tasks.

    It tells of what happens anyway, so nothing cancels it: a task that is cancelled while it awaits leaves it as it is.
    `result` waits 30 s unless told otherwise and raises `ParamstreamTimeout`, or the error that the events ended with.
    """

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self._awaited = awaited
        # Under way from the start: `cancel`, of a task that awaits it too, changes nothing for the others who hold it.
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = 30.0) -> VersionVector[str]:
        try:
            return super().result(None if timeout is None else bounded(timeout))
        except TimeoutError as error:
            if isinstance(error, ParamstreamError):
                raise
            raise ParamstreamTimeout(
                f"{self._awaited} did not come within {timeout} s", remedy="It may still come; wait again"
            ) from None

    def __await__(self) -> Generator[Any, None, VersionVector[str]]:
        return asyncio.wrap_future(self).__await__()


class Tracker(Protocol):
    """The session behind a receipt."""

    @property
    def name(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def directory(self) -> Directory: ...
    @property
    def lock(self) -> RLock: ...


class Follower(Protocol):
    """What follows the events of parsed receipts: the client that they were attached to."""

    def durable(self, record: ReceiptRecord) -> Outcome:
        """A future that is done once all that the record names as its own is durable, or fails where some of it is lost."""
        ...


@dataclass(frozen=True, slots=True)
class ReceiptRecord:
    """What a receipt says once its events are accepted; all of it travels as text."""

    producer: str
    incarnation: int
    version: int | None
    positions: VersionVector[str]
    vector: VersionVector[str]
    parts: tuple[PartRef, ...] = ()
    """What `publish_weights(seal=False)` staged, for a commit to name."""


class Receipt:
    """What one call published.

    `accepted` and `durable` are futures that give the closed `VersionVector` of topic names: what the call wrote and
    everything it depends on. `str(receipt)` waits up to 30 s for acceptance and carries the receipt to another process,
    where `Receipt.parse` gives it back; a parsed receipt serves waits and commits, and once `client.attach` has it, it
    follows its events too.
    """

    __slots__ = ("_accepted", "_accepted_in", "_call", "_durable", "_follower", "_record", "_record_of", "_session")

    def __init__(self, session: Tracker | None, call: Call | None, record: ReceiptRecord | None = None) -> None:
        self._session = session
        self._call = call
        self._record = record
        self._follower: Follower | None = None
        self._accepted: Outcome | None = None
        self._durable: Outcome | None = None
        self._accepted_in = self._record_of = 0
        """How many events of the call had gone again when `accepted` and the record were made."""

    @property
    def accepted(self) -> Outcome:
        """Done when every event of the call is sequenced; raises what they were refused with, or `EventLost`.

        Under `lost="again"` a loss ends what was said before: asked for again, it is the acceptance of the new events.
        """
        if self._accepted is None or (self._accepted.done() and self._renewals != self._accepted_in):
            self._accepted = None
            self._accepted = self._future("acceptance")
        return self._accepted

    @property
    def durable(self) -> Outcome:
        """Done when the log has every event for good; raises `EventLost` where it never will.

        Raises `NotDurable` at once under persistence "none", and `OutcomeUnknown` at once on a parsed receipt that is not
        attached to a client.
        """
        call = self._call
        if call is None:
            return self._followed()
        if call.persistence == "none":
            raise NotDurable('nothing of a topic with persistence "none" becomes durable', remedy="Wait for `accepted`")
        if self._durable is None:
            self._durable = self._future("durability")
        return self._durable

    @property
    def version(self) -> int | None:
        """The version that the call published, None for anything but weights."""
        known = self._call or self._record
        return known.version if known is not None else None

    @property
    def outcome(self) -> str:
        """ "pending" | "unknown" | "accepted" | "durable" | "lost" | "refused", as of now."""
        if self._call is not None:
            return self._call.outcome()
        known = self._durable
        if known is None or not known.done():
            return "accepted"
        return "durable" if known.exception() is None else "lost"

    @property
    def parts(self) -> tuple[PartRef, ...]:
        """The part events that `publish_weights(seal=False)` staged; empty for anything else. Never waits."""
        known = self._call or self._record
        return known.parts if known is not None else ()

    def attach_to(self, follower: Follower) -> None:
        """From here on a parsed receipt follows its events; `client.attach` calls this."""
        if self._call is None:
            self._follower = follower

    @property
    def vector(self) -> VersionVector[str]:
        """The closed vector. Waits up to 30 s for acceptance."""
        return self.record().vector

    @property
    def positions(self) -> VersionVector[str]:
        """Where the call's own events stand: the last one in each partition. Waits up to 30 s for acceptance."""
        return self.record().positions

    def record(self, timeout: float = 30.0) -> ReceiptRecord:
        """All that the receipt says. Waits for acceptance; raises as `accepted` does."""
        if self._record is None or self._renewals != self._record_of:
            renewals = self._renewals
            vector = self.accepted.result(timeout)
            assert self._call is not None and self._session is not None
            positions = self._session.directory.to_names(VersionVector(self._call.positions))
            name, incarnation = self._session.name, self._session.incarnation
            self._record = ReceiptRecord(name, incarnation, self._call.version, positions, vector, self._call.parts)
            self._record_of = renewals
        return self._record

    @property
    def goes_again(self) -> bool:
        """If its events are lost they go again as new ones, which the receipt names then."""
        call = self._call
        return call is not None and call.again and not call.written and not call.final

    @property
    def _renewals(self) -> int:
        return self._call.renewals if self._call is not None else 0

    def _written(self) -> ReceiptRecord:
        """The record as it stays: from here on the events that it names do not go again."""
        while True:
            record, call = self.record(), self._call
            if call is None or self._session is None:
                return record
            with self._session.lock:
                if call.renewals == self._record_of:
                    call.written = True
                    return record

    def __str__(self) -> str:
        record = self._written()
        version = "" if record.version is None else str(record.version)
        producer = quote(record.producer, safe="")
        fields = [_PREFIX, producer, str(record.incarnation), version, str(record.positions), str(record.vector)]
        if record.parts:
            # The parts of one call are of one session: their sequences are enough.
            fields.append(",".join(str(part.sequence) for part in record.parts))
        return ";".join(fields)

    def __repr__(self) -> str:
        return f"<Receipt {self.outcome}>"

    @staticmethod
    def parse(text: str) -> Receipt:
        """The receipt that `str` wrote. Raises `InvalidEvent` for what is none."""
        if not isinstance(cast(object, text), str):
            raise InvalidEvent(f"a receipt is parsed from the text that str(receipt) gave, not {type(text).__name__}")
        try:
            prefix, quoted, life, version, positions, vector, *parts = text.split(";")
            if prefix != _PREFIX or len(parts) > 1:
                raise ValueError(f"it begins with {prefix!r} and has {6 + len(parts)} fields")
            producer, incarnation = check_name("producer", unquote(quoted)), _number(life)
            record = ReceiptRecord(
                producer,
                incarnation,
                check_version(_number(version)) if version else None,
                VersionVector.parse(positions),
                VersionVector.parse(vector),
                tuple(PartRef(producer, incarnation, _number(each)) for each in parts[0].split(",")) if parts else (),
            )
        except ValueError as error:
            raise InvalidEvent(f"not a receipt: {error}", item=text[:64]) from error
        return Receipt(None, None, record)

    def _followed(self) -> Outcome:
        """The durability of a parsed receipt, as the client that it is attached to learns of it."""
        if self._durable is None:
            if self._follower is None:
                raise OutcomeUnknown(
                    "a parsed receipt does not follow its events",
                    remedy="Attach it, client.attach(receipt), or wait on a replica: rep.wait(receipt)",
                )
            self._durable = self._follower.durable(self.record())
        return self._durable

    def _future(self, what: str) -> Outcome:
        future = Outcome(f"{what} of {self!r}")
        if self._call is None or self._session is None:
            assert self._record is not None
            future.set_result(self._record.vector)
            return future
        with self._session.lock:
            if what == "acceptance":
                self._accepted_in = self._call.renewals
                future = self._accepted = self._accepted or future
            else:
                future = self._durable = self._durable or future
            self._call.listener = self._changed
        self._changed()
        return future

    def _changed(self) -> None:
        """Complete the futures that the call's outcome allows. Runs outside the session's lock."""
        call = self._call
        assert call is not None
        if self._accepted is not None and (call.accepted or call.final):
            self._complete(self._accepted, call, call.accepted)
        if self._durable is not None and call.final:
            self._complete(self._durable, call, call.durable)

    def _complete(self, future: Outcome, call: Call, reached: bool) -> None:
        assert self._session is not None
        try:
            if future.done():
                return
            if reached:
                future.set_result(self._session.directory.to_names(call.vector()))
            elif call.error is not None:
                future.set_exception(named_error(call, call.error, self._session.directory))
        except InvalidStateError:
            # Another thread was first.
            return


def _number(text: str) -> int:
    """64 bits, as `str` writes them. Raises `ValueError`."""
    if not _NUMBER.fullmatch(text) or (number := int(text)) >= 1 << 64:
        raise ValueError(f"{text[:32]!r} is no number of 64 bits")
    return number


def named_error(call: Call, error: ParamstreamError, directory: Directory) -> ParamstreamError:
    """The error that a call ended with, naming its topic and what of the call was accepted before it."""
    if error.topic is None:
        error.topic = directory.name_of(call.partitions[0][0])
    if call.positions and error.accepted is None:
        error.accepted = directory.to_names(VersionVector(call.positions))
    return error
