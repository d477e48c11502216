"""Whether a decoded payload is whole: what its meta says against the bulk it has, and against the limits.

A producer's mistakes are refused before a byte leaves (`InvalidEvent`); a peer's are refused on arrival by the same checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from ..errors import InvalidEvent
from .arrays import DTYPES, nbytes_of
from .digest import DIGEST_BYTES
from .kinds import (
    Chunk,
    Commit,
    Delete,
    DeleteRows,
    DenseGradients,
    GradientPiece,
    Gradients,
    Part,
    Payload,
    Put,
    PutItem,
    Rows,
    Table,
)
from .limits import MAX_KEY_BYTES, MAX_TTL_NS, MAX_VALUE_BYTES, check_name, check_version
from .tables import ROW_DTYPES, check_init, check_optimizer

ROW_KEY_BYTES = 8


def check_payload(payload: Payload, bulk_nbytes: int) -> None:
    """Raises `InvalidEvent` that names what does not fit."""
    expected = 0
    match payload:
        case Chunk():
            check_version(payload.version)
            for segment in payload.segments:
                check_name("tensor", segment.name)
                if segment.offset < 0 or segment.nbytes < 0:
                    raise InvalidEvent("a segment has a negative offset or length", item=segment.name)
            expected = sum(segment.nbytes for segment in payload.segments)
        case Part():
            _check_part(payload)
        case Commit():
            check_version(payload.version)
            if not payload.parts or len(payload.digest) != DIGEST_BYTES or payload.schema not in ("same", "replace"):
                raise InvalidEvent("a commit needs parts, a digest and a schema rule", version=payload.version)
        case Table():
            check_table(payload)
        case Rows() | Gradients():
            expected = _rows_nbytes(payload)
        case DenseGradients():
            expected = _dense_nbytes(payload)
        case DeleteRows():
            check_name("table", payload.table)
            if payload.count < 0:
                raise InvalidEvent("a negative count of keys", item=payload.table)
            if payload.up_to is not None and not 0 <= payload.up_to < 1 << 64:
                raise InvalidEvent(f"{payload.up_to} is no position of a row", item=payload.table)
            expected = payload.count * ROW_KEY_BYTES
        case Put():
            for item in payload.items:
                check_put(item)
            expected = sum(item.nbytes for item in payload.items)
        case Delete():
            for key in payload.keys:
                check_key(key)
        case _:
            expected = bulk_nbytes
    if bulk_nbytes != expected:
        raise InvalidEvent(f"a {type(payload).__name__.lower()} says {expected} bytes of bulk and has {bulk_nbytes}")


def key_bytes(key: object) -> bytes:
    """A key as users give it: a str is its UTF-8 bytes. Raises `InvalidEvent` for what is neither bytes nor str."""
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise InvalidEvent("a str key must be valid UTF-8", item=repr(key)) from error
    if not isinstance(key, bytes | bytearray | memoryview):
        raise InvalidEvent(f"a key is bytes or str, not {type(key).__name__}", item=repr(key))
    return bytes(cast(bytes, key))


def check_key(key: bytes) -> None:
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise InvalidEvent(f"a key of {len(key)} bytes; it must have 1 to {MAX_KEY_BYTES}", item=repr(key[:64]))


def check_put(item: PutItem) -> None:
    check_key(item.key)
    if not 0 <= item.nbytes <= MAX_VALUE_BYTES:
        raise InvalidEvent(
            f"a value of {item.nbytes} bytes is over the limit of {MAX_VALUE_BYTES}",
            item=repr(item.key[:64]),
            remedy="Cut it into several keys, or publish it as a tensor",
        )
    if item.valid_for is not None:
        check_version(item.valid_for.version)
        if not 0 <= item.valid_for.commit < 1 << 64:
            raise InvalidEvent(f"{item.valid_for.commit} is no position of a commit", item=repr(item.key[:64]))
    if item.ttl_ns is not None and not 0 < item.ttl_ns <= MAX_TTL_NS:
        raise InvalidEvent(
            f"a TTL of {item.ttl_ns / 1e9} s; it must be over 0 and at most a century",
            item=repr(item.key[:64]),
            remedy="Give seconds, or None for no TTL",
        )


def check_table(table: Table) -> None:
    check_name("table", table.table)
    dim = cast(object, table.dim)  # what a user gave, not decoded
    if isinstance(dim, bool) or not isinstance(dim, int) or not 0 < dim <= MAX_VALUE_BYTES // 8:
        raise InvalidEvent(
            f"a table of dim {dim!r}; it must be an int from 1 to {MAX_VALUE_BYTES // 8}", item=table.table
        )
    if table.expire_after_ns is not None and not 0 < table.expire_after_ns <= MAX_TTL_NS:
        raise InvalidEvent(
            f"rows that expire after {table.expire_after_ns / 1e9} s; it must be over 0 and at most a century",
            item=table.table,
            remedy="Give seconds, or None to keep rows for good",
        )
    if table.dtype not in ROW_DTYPES:
        raise InvalidEvent(
            f"rows cannot be of dtype {table.dtype!r}", item=table.table, remedy=f"Use one of {', '.join(ROW_DTYPES)}"
        )
    try:
        if table.optimizer is not None:
            check_optimizer(table.optimizer)
        check_init(table)
    except InvalidEvent as error:
        error.item = table.table
        raise


def put_values(put: Put, bulk: memoryview) -> Iterator[tuple[PutItem, memoryview]]:
    """Each item with its value, a view of the bulk."""
    at = 0
    for item in put.items:
        yield item, bulk[at : at + item.nbytes]
        at += item.nbytes


def _check_part(part: Part) -> None:
    check_version(part.version)
    for spec in part.tensors:
        check_name("tensor", spec.name)
        if nbytes_of(spec.dtype, spec.shape) != spec.nbytes or len(spec.digest) != DIGEST_BYTES:
            raise InvalidEvent(
                f"{spec.dtype} {spec.shape} does not have {spec.nbytes} bytes", item=spec.name, version=part.version
            )
        if not 0 <= spec.first_chunk <= spec.last_chunk:
            raise InvalidEvent(f"chunks {spec.first_chunk} to {spec.last_chunk}", item=spec.name, version=part.version)


def _rows_nbytes(rows: Rows | Gradients) -> int:
    check_name("table", rows.table)
    if rows.count < 0 or rows.dim < 1:
        raise InvalidEvent(f"{rows.count} rows of dim {rows.dim}", item=rows.table)
    return rows.count * ROW_KEY_BYTES + nbytes_of(rows.dtype, (rows.count, rows.dim))


def _dense_nbytes(gradients: DenseGradients) -> int:
    step = check_version(gradients.step)
    if not 0 <= gradients.number < gradients.count or not gradients.pieces:
        raise InvalidEvent(
            f"event {gradients.number} of {gradients.count} with {len(gradients.pieces)} pieces", version=step
        )
    for piece in gradients.pieces:
        check_name("tensor", piece.name)
        whole, size = nbytes_of(piece.dtype, piece.shape), DTYPES[piece.dtype].itemsize
        fits = 0 <= piece.offset <= whole and 0 <= piece.nbytes <= whole - piece.offset
        if not fits or piece.offset % size or piece.nbytes % size or len(piece.digest) != DIGEST_BYTES:
            raise InvalidEvent(
                f"bytes {piece.offset} and {piece.nbytes} more are no piece of {piece.dtype} {piece.shape}",
                item=piece.name,
                version=step,
            )
    return sum(piece.nbytes for piece in gradients.pieces)


def gradient_pieces(gradients: DenseGradients, bulk: memoryview) -> Iterator[tuple[GradientPiece, memoryview]]:
    """Each piece with its bytes, a view of the bulk."""
    at = 0
    for piece in gradients.pieces:
        yield piece, bulk[at : at + piece.nbytes]
        at += piece.nbytes
