"""A value of any of our structs, made from its own description: a struct that is added has its seeds without anybody's care."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect

_LENGTH = struct.Struct("<H")


def examples_of(kind: Any) -> list[Any]:
    """Some values of a type: every alternative of a union once, one item in each container."""
    return list(_values(inspect.type_info(kind)))


def _values(kind: inspect.Type) -> Iterator[Any]:
    match kind:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _values(each)
        case inspect.StructType(cls=cls, fields=fields):
            yield from (cls(*values) for values in _together([list(_values(field.type)) for field in fields]))
        case inspect.VarTupleType(item_type=item):
            yield tuple(_values(item))
        case inspect.TupleType(item_types=items):
            yield from (tuple(values) for values in _together([list(_values(item)) for item in items]))
        case inspect.ListType(item_type=item):
            yield list(_values(item))
        case inspect.DictType(key_type=key, value_type=value):
            yield dict(zip(_values(key), _values(value), strict=False))
        case inspect.NoneType():
            yield None
        case inspect.BoolType():
            yield True
        case inspect.IntType(le=most):
            yield 1 << 40 if most is None else 1
        case inspect.FloatType():
            yield 0.5
        case inspect.StrType():
            yield "name"
        case inspect.BytesType():
            yield bytes(20)
        case inspect.RawType():
            yield msgspec.Raw(b"\x91\xc0")
        case _:
            raise AssertionError(f"no example of {kind}")


def _together(choices: list[list[Any]]) -> Iterator[list[Any]]:
    """Each choice of each field at least once."""
    for number in range(max(map(len, choices), default=1)):
        yield [each[min(number, len(each) - 1)] for each in choices]


def joined(pieces: Iterable[bytes]) -> bytes:
    """Several inputs in one; `split` takes them apart."""
    return b"".join(_LENGTH.pack(len(piece)) + piece for piece in pieces)


def split(data: bytes, most: int = 64) -> list[bytes]:
    """At most so many pieces of whatever bytes these are: the last one may be short."""
    pieces, at = list[bytes](), 0
    while at + _LENGTH.size <= len(data) and len(pieces) < most:
        (nbytes,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        pieces.append(data[at : at + nbytes])
        at += nbytes
    return pieces
