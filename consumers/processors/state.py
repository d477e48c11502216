"""A processor's state as bytes: plain data and numpy arrays, never pickled, and the same again when it is read.

What a step does must not depend on whether its state came from memory or from a snapshot. So types come back as they were
(a tuple as a tuple, an array with its memory order, a numpy scalar as one), and what would not is refused, naming the key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from ...errors import CorruptLog, InvalidEvent
from ...events.arrays import as_numpy, describe, is_torch, nbytes_of, row_major

MAX_DEPTH = 32
"""Of containers within containers: a list that holds itself is refused like any other bad state."""

_TUPLE, _BYTEARRAY, _SCALAR, _ARRAY = 1, 2, 3, 4
_PLAIN = (type(None), bool, float, bytes)
_REMEDY = "A state holds None, bool, int of 64 bits, float, str, bytes, bytearray, lists, tuples, dicts, numpy arrays and numpy scalars"


@dataclass(frozen=True, slots=True)
class EncodedState:
    """A copy of a state. `tree` is MessagePack; the values of arrays lie in `bulk`, one behind the other."""

    tree: bytes
    bulk: tuple[bytes, ...]


def encode_state(state: dict[Any, Any]) -> EncodedState:
    """Copies the state. Raises `InvalidEvent` naming the key whose value is no plain data, or is found under two keys:
    a change of one would change the other now, and not after a crash.
    """
    writer = _Writer()
    tree = writer.mapping(state, "", 0)
    return EncodedState(msgspec.msgpack.encode(tree), tuple(writer.bulk))


def decode_state(tree: bytes, bulk: memoryview) -> dict[Any, Any]:
    """The state that `encode_state` made; `bulk` is copied. Raises `CorruptLog` where it is none."""

    reader = _Reader(bulk)
    try:
        state: dict[Any, Any] = msgspec.msgpack.Decoder(dict[Any, Any], ext_hook=reader.value).decode(tree)
        reader.end()
    except (ValueError, RecursionError) as error:  # A DecodeError is a ValueError, and an InvalidEvent too.
        raise CorruptLog(f"a state cannot be decoded: {error}") from error
    return state


@dataclass(slots=True)
class _Writer:
    bulk: list[bytes] = field(default_factory=list[bytes])
    nbytes: int = 0
    owners: dict[int, str] = field(default_factory=dict[int, str])
    """id of each mutable value → the key that it was found under."""

    def mapping(self, given: dict[Any, Any], path: str, depth: int) -> dict[Any, Any]:
        self._claim(given, path, depth)
        found: dict[Any, Any] = {}
        for key, value in given.items():
            if type(key) not in (str, bytes, int) or (type(key) is int and not _fits(key)):
                raise _refused(f"the key {key!r} is no str, bytes or int of 64 bits", path)
            found[self._value(key, path, depth)] = self._value(value, f"{path}[{key!r}]", depth + 1)
        return found

    def _value(self, value: Any, path: str, depth: int) -> Any:
        if type(value) in _PLAIN:
            return value
        if type(value) is str:
            return _checked(value, path)
        if type(value) is int:
            if not _fits(value):
                raise _refused(f"the int {value} has more than 64 bits", path)
            return value
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value, path)
        if type(value) is dict:
            return self.mapping(cast(Any, value), path, depth)
        if type(value) is bytearray:
            self._claim(value, path, depth)
            return msgspec.msgpack.Ext(_BYTEARRAY, bytes(value))
        if type(value) in (list, tuple):
            return self._sequence(cast("list[Any] | tuple[Any, ...]", value), path, depth)
        kind = "a torch tensor; keep it as a numpy array, tensor.numpy()" if is_torch(value) else type(value).__name__
        raise _refused(f"the value is {kind}", path)

    def _sequence(self, given: list[Any] | tuple[Any, ...], path: str, depth: int) -> Any:
        if isinstance(given, list):
            self._claim(given, path, depth)
        elif depth > MAX_DEPTH:
            raise _refused(f"it nests deeper than {MAX_DEPTH}", path)
        items = [self._value(item, f"{path}[{number}]", depth + 1) for number, item in enumerate(given)]
        return items if isinstance(given, list) else msgspec.msgpack.Ext(_TUPLE, msgspec.msgpack.encode(items))

    def _array(self, value: Any, path: str) -> msgspec.msgpack.Ext:
        try:
            dtype, _ = describe(path, value)
        except InvalidEvent as error:
            raise _refused(error.problem, path) from error
        if not value.dtype.isnative:
            raise _refused(f"the array is {value.dtype}, of the other byte order", path)
        if not isinstance(value, np.ndarray):
            data = bytes(row_major(path, value))
            return msgspec.msgpack.Ext(_SCALAR, msgspec.msgpack.encode((dtype, data)))
        if type(cast(object, value)) is not np.ndarray:
            raise _refused(f"the value is {type(cast(object, value)).__name__}, which is more than an array", path)
        array = cast("npt.NDArray[Any]", value)
        by_columns = not array.flags.c_contiguous
        if by_columns and not array.flags.f_contiguous:
            raise _refused("the array is a strided view: sums over it may round differently; keep a copy of it", path)
        if array.flags.writeable:
            self._claim(_owner(array), path, 0)
        stored = array.T if by_columns else array
        data = bytes(row_major(path, stored))
        at, self.nbytes = self.nbytes, self.nbytes + len(data)
        self.bulk.append(data)
        about = dtype, stored.shape, by_columns, array.flags.writeable, at
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(about))

    def _claim(self, value: Any, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _refused(f"it nests deeper than {MAX_DEPTH}", path)
        other = self.owners.setdefault(id(value), path)
        if other != path:
            raise _refused(f"the value is the same object (or memory) as that of state{other}; keep a copy", path)


@dataclass(slots=True)
class _Reader:
    bulk: memoryview
    taken: int = 0
    """Bytes of the bulk that arrays have had: each begins where the one before it ends, so that none is copied twice."""

    def value(self, code: int, data: memoryview) -> Any:
        match code:
            case 1:  # _TUPLE
                return tuple(msgspec.msgpack.Decoder(list[Any], ext_hook=self.value).decode(data))
            case 2:  # _BYTEARRAY
                return bytearray(data)
            case 3:  # _SCALAR
                dtype, values = msgspec.msgpack.decode(data, type=tuple[str, bytes])
                if len(values) != nbytes_of(dtype, ()):
                    raise ValueError(f"a {dtype} of {len(values)} bytes")
                return as_numpy(values, dtype, ())[()]
            case 4:  # _ARRAY
                return self._array(*msgspec.msgpack.decode(data, type=_ArrayRecord))
            case _:
                raise ValueError(f"an unknown code {code}")

    def _array(
        self, dtype: str, shape: tuple[int, ...], by_columns: bool, writeable: bool, at: int
    ) -> npt.NDArray[Any]:
        end = at + nbytes_of(dtype, shape)
        if at != self.taken or end > len(self.bulk):
            raise ValueError(f"an array of bytes {at} to {end}, where {self.taken} of {len(self.bulk)} are taken")
        self.taken = end
        array = as_numpy(bytearray(self.bulk[at:end]), dtype, shape)
        array = array.T if by_columns else array
        array.flags.writeable = writeable
        return array

    def end(self) -> None:
        if self.taken != len(self.bulk):
            raise ValueError(f"{len(self.bulk) - self.taken} bytes belong to no array")


_ArrayRecord = tuple[str, tuple[int, ...], bool, bool, int]


def _owner(array: npt.NDArray[Any]) -> Any:
    """Whose memory it is."""
    owner = array.base
    while isinstance(owner, np.ndarray) and cast(Any, owner).base is not None:
        owner = cast(Any, owner).base
    return array if owner is None else cast(Any, owner)


def _checked(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _refused(f"the str is no valid UTF-8: {error.reason}", path) from error
    return text


def _fits(number: int) -> bool:
    return -(1 << 63) <= number < 1 << 64


def _refused(problem: str, path: str) -> InvalidEvent:
    return InvalidEvent(f"the state of a processor cannot be kept: {problem}", item=f"state{path}", remedy=_REMEDY)
