"""What a partition refuses of an event that comes in its turn: each with a typed error, before anything is changed."""

from __future__ import annotations

from typing import Literal

from ..errors import CorruptLog, InvalidEvent, UnknownTopic
from ..events.codec import EventFrame, decode_vector
from ..events.kinds import STATE_KINDS, WEIGHT_KINDS, Commit, DeleteRows, Gradients, Kind, Part, Rows
from ..events.validate import check_payload
from .schema import check_part
from .state import PartitionState

Role = Literal["meta", "state", "weights"]

PRODUCERS_SEND: dict[Role, frozenset[Kind]] = {
    "meta": frozenset(),
    "state": STATE_KINDS - {Kind.TABLE},
    "weights": WEIGHT_KINDS,
}
"""The kinds that a session may send. Definitions of tables come by a call, and the owner writes them itself."""


def check_event(frame: EventFrame, role: Role, state: PartitionState) -> None:
    """Raises `InvalidEvent`, `UnknownTopic` (no such table), `VersionConflict`, `EventLost` or `SchemaMismatch`."""
    if frame.kind not in PRODUCERS_SEND[role]:
        raise InvalidEvent(
            f"a {role} partition takes no {frame.kind.label} events from a producer",
            remedy="Weights go to the topic's last partition, rows and KV to the others",
        )
    payload = frame.payload
    check_payload(payload, len(frame.bulk))
    _check_vector("own", frame.head.own)
    _check_vector("observed", frame.head.observed)
    match payload:
        case Rows() | Gradients() | DeleteRows():
            _check_rows(payload, state)
        case Part():
            check_part(payload, frame.head.sequence)
        case Commit():
            _check_vector("needs", payload.needs)
            state.dense.check(payload)
        case _:
            pass


def _check_rows(rows: Rows | Gradients | DeleteRows, state: PartitionState) -> None:
    table = state.tables.get(rows.table)
    if table is None:
        raise UnknownTopic(
            f"the topic has no table {rows.table!r}", item=rows.table, remedy="Create it with client.create_table"
        )
    if not isinstance(rows, DeleteRows) and (rows.dim, rows.dtype) != (table.dim, table.dtype):
        raise InvalidEvent(
            f"rows of dim {rows.dim} and dtype {rows.dtype} for a table of dim {table.dim} and dtype {table.dtype}",
            item=rows.table,
            remedy="Publish what the table's definition says",
        )
    if isinstance(rows, Gradients) and table.optimizer is None:
        raise InvalidEvent(
            "the table has no optimizer, and takes no gradients",
            item=rows.table,
            remedy="Give it one with client.alter_table",
        )


def _check_vector(what: str, data: bytes) -> None:
    try:
        decode_vector(data)
    except CorruptLog as error:
        raise InvalidEvent(f"the event's {what} vector cannot be decoded: {error.problem}") from error
