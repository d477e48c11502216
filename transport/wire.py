"""The two shapes that cross the wire beside events, where each message goes, and errors as they cross it."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, ClassVar, TypeAlias

import msgspec

from ..errors import FieldValue, ParamstreamError, error_from_wire

Id: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""Of a topic."""

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
"""Of a partition. What else MessagePack can say would not fit where ids, numbers and positions are packed."""

At: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""A position."""


class To(Enum):
    """Which of several brokers a message of a client is for."""

    EVERY = "every broker"
    META = "the owner of `__meta`"
    META_FIRST = "the owner of `__meta`, and once it has answered all others"
    OWNER = "the owner of the partition (`topic`, `partition`) that the message names"


class Message(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A control frame."""

    to: ClassVar[To] = To.EVERY


class Record(msgspec.Struct, array_like=True, frozen=True):
    """A part of a control frame."""


class WireError(Record, frozen=True):
    """An error as it crosses the wire; `raised()` is the same error on this side."""

    code: str
    problem: str
    remedy: str
    fields: dict[str, FieldValue]

    @classmethod
    def of(cls, error: ParamstreamError) -> WireError:
        return cls(error.code, error.problem, error.remedy, error.fields())

    def raised(self) -> ParamstreamError:
        return error_from_wire(self.code, self.problem, self.remedy, self.fields)
