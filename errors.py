"""The one family of errors.

Each error says what went wrong, about which topic, partition, item, position or version, and what to do. The same
fields are attributes, so that a program need not read the text. `retriable` tells whether the same call may succeed later
without a change by the caller.

An error crosses the wire as its `code` (the class name) with its fields, and is raised again as the same class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

FieldValue = str | int | float | None


class ParamstreamError(Exception):
    """Root of all errors of this library. `problem` is one sentence; `remedy` says what to do about it."""

    retriable: ClassVar[bool] = False

    def __init__(
        self,
        problem: str,
        *,
        remedy: str = "",
        topic: str | None = None,
        partition: int | None = None,
        item: str | None = None,
        position: int | None = None,
        version: int | None = None,
        accepted: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        self.problem = problem
        self.remedy = remedy
        self.topic = topic
        self.partition = partition
        self.item = item
        self.position = position
        self.version = version
        self.accepted = accepted
        """For a call over several partitions: the vector of what was accepted before the error."""
        super().__init__(problem)

    @property
    def code(self) -> str:
        return type(self).__name__

    def fields(self) -> dict[str, FieldValue]:
        """What the error is about, without what is unset: the form that crosses the wire."""
        named: dict[str, FieldValue] = {
            "topic": self.topic,
            "partition": self.partition,
            "item": self.item,
            "position": self.position,
            "version": self.version,
        }
        return {name: value for name, value in named.items() if value is not None}

    def __str__(self) -> str:
        about = ", ".join(f"{name} {value!r}" for name, value in self.fields().items())
        text = self.problem + (f" ({about})" if about else "")
        if self.accepted:
            text += f"; accepted before it: {self.accepted}"
        return text + (f". {self.remedy}" if self.remedy else "")


class ParamstreamTimeout(ParamstreamError, TimeoutError):
    """A wait passed its deadline. What was awaited may still happen."""

    retriable = True


class ConnectFailed(ParamstreamError):
    """No broker answered at the endpoint in time; the problem names the endpoint and what was seen there."""

    retriable = True


class BackpressureTimeout(ParamstreamTimeout):
    """The broker's byte window stayed full. Nothing of this call was sent."""


class OutcomeUnknown(ParamstreamError):
    """The connection went before the broker answered. The outcome is settled when the session joins again."""

    retriable = True


class EventLost(ParamstreamError):
    """The event was accepted or sent, and its partition's log ended before it. It is never sent again by itself."""


class NotDurable(ParamstreamError):
    """The topic's persistence is "none": nothing of it ever becomes durable."""


class InvalidEvent(ParamstreamError, ValueError):
    """What a user or a peer hands in cannot be used: an unknown dtype, a value over a limit, a name that is empty or too long, a
    text that is no vector, receipt or size, …
    """


class InvalidHistory(ParamstreamError):
    """A file is no history that can be checked; the problem names file, line and what is wrong there."""


class SchemaMismatch(ParamstreamError):
    """Names, shapes or dtypes differ from those that the topic's first commit set."""


class UnknownTopic(ParamstreamError):
    """No topic (or table) of that name."""


class TopicExists(ParamstreamError):
    """A topic (or table) of that name exists with other settings, or `exist_ok` was not given."""


class BindFailed(ParamstreamError):
    """An address, or the folder of a log, cannot be taken; the problem names who holds it where that is known."""


class VersionConflict(ParamstreamError):
    """The version is sealed with another digest, or is lower than the newest and `rewind` was not given."""


class VersionNotHeld(ParamstreamError):
    """The replica (or the log) does not hold that version, or nothing has been committed yet."""


class LogTruncated(ParamstreamError):
    """What was asked for lies before the log's start."""


class CorruptLog(ParamstreamError):
    """A record or frame that counts cannot be decoded. Its partition stops there; nothing is skipped."""


class CorruptTier(ParamstreamError):
    """What a tier keeps on disk cannot be read back: it is damaged, or the disk does not give it. The problem names file and place, and
    all else that the tier holds can be read.
    """

    keys: tuple[int, ...] = ()
    """Of rows: their keys."""


class Fenced(ParamstreamError):
    """A newer session, replica or owner of the same name has taken over."""


class NotOwner(ParamstreamError):
    """Another broker owns the partition, or will in a moment. A client looks again at who owns what, and users do not meet it."""

    retriable = True


class AccessDenied(ParamstreamError):
    """The broker, or the rule that binds beyond loopback, does not allow this."""


class StorageFull(ParamstreamError):
    """A tier or a log is at its hard limit. Nothing of the call was kept."""

    retriable = True


def _family(root: type[ParamstreamError]) -> dict[str, type[ParamstreamError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _family(child)
    return found


def error_from_wire(code: str, problem: str, remedy: str, fields: Mapping[str, FieldValue]) -> ParamstreamError:
    """The error that a peer described. An unknown code (of a newer peer) becomes the root class and keeps its name."""
    kind = _family(ParamstreamError).get(code)
    if kind is None:
        kind, problem = ParamstreamError, f"{code}: {problem}"
    error = kind(problem, remedy=remedy)
    for name in ("topic", "partition", "item", "position", "version"):
        setattr(error, name, fields.get(name))
    return error
