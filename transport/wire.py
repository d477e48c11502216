"""The two shapes that cross the wire beside events, and errors as they cross it."""

from __future__ import annotations

import msgspec

from ..errors import FieldValue, ParamstreamError, error_from_wire


class Message(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A control frame."""


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
