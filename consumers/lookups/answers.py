"""What a replica answers to a look-up, or that the answer must wait: no socket, clock or thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...consistency.position import show
from ...consistency.vector import PartitionId
from ...errors import (
    CorruptLog,
    CorruptTier,
    EventLost,
    InvalidEvent,
    ParamstreamError,
    ParamstreamTimeout,
    UnknownTopic,
)
from ...events.arrays import DTYPES
from ...events.validate import check_key
from ...transport.lookups import (
    MAX_ANSWER_BYTES,
    MAX_KEYS,
    AnyQuestion,
    Declined,
    FoundEntries,
    FoundRows,
    GetEntries,
    LookUp,
    encode_frame,
)
from ...transport.wire import WireError

KEY = np.dtype("<i8")

READS = 4
"""How often rows are read again where a loss took something back meanwhile, before the asker is sent elsewhere."""

TABLE_S = 0.5
"""How long a table that is not known yet may take to come: whoever made it a moment ago asks for it at once."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the partitions asked stand at a moment."""

    positions: Mapping[int, int]
    """Number → applied position."""
    undone: int
    """How often anything of them was taken back."""


class Source(Protocol):
    """A replica as the answers need it. Any thread."""

    def partitions(self, topic: int) -> Sequence[int] | None:
        """The state partitions followed of a topic; None where it is not followed (any more)."""
        ...

    def standing(self, topic: int, numbers: Iterable[int]) -> Standing:
        """Of these partitions, which are followed; beside them that of the weights, if it is asked. Raises the error that stopped
        one of them.
        """
        ...

    def is_lost(self, partition: PartitionId, position: int) -> bool: ...

    def table(self, topic: int, numbers: Iterable[int], name: str) -> tuple[int, str] | None:
        """(dim, dtype) of a table of the topic; None where one of these partitions knows none of that name."""
        ...

    def lookup(
        self, topic: int, table: str, keys: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """(values (n, dim), found (n,)) of keys that are all of partitions followed."""
        ...

    def get(self, topic: int, key: bytes) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """The answer is not to be had yet."""

    most_s: float
    """No longer than this in all; then it is `late`."""
    late: Declined


def answer(source: Source, question: AnyQuestion, bulk: memoryview) -> bytes | Declined | Waiting:
    """The answer's frame, or why there is none. Whatever a question may hold, it raises nothing."""
    try:
        return _answer(source, question, bulk)
    except _Elsewhere as elsewhere:
        return declined(question.id, elsewhere.error, elsewhere=True)
    except CorruptTier as damaged:
        # Of this replica's own disk.
        return declined(question.id, damaged, elsewhere=True)
    except ParamstreamError as error:
        return declined(question.id, error)


def declined(number: int, error: ParamstreamError, *, elsewhere: bool = False) -> Declined:
    return Declined(number, WireError.of(error), elsewhere)


class _Elsewhere(Exception):
    """This replica has no answer; another may."""

    def __init__(self, error: ParamstreamError) -> None:
        super().__init__()
        self.error = error


def _answer(source: Source, question: AnyQuestion, bulk: memoryview) -> bytes | Waiting:
    _check_place(source, question)
    for _ in range(READS):
        before = _standing(source, question)
        waits = _unmet(source, question, before)
        if waits is not None:
            return waits
        if isinstance(question, GetEntries):
            found = _entries(source, question, before)
        else:
            table = source.table(question.topic, question.partitions, question.table)
            if table is None:
                unknown = UnknownTopic("the topic has no table of that name", item=question.table)
                return Waiting(min(question.wait_s, TABLE_S), declined(question.id, unknown))
            found = _rows(source, question, bulk, before, *table)
        if _standing(source, question).undone == before.undone:
            return found
    raise _Elsewhere(ParamstreamError("events are being taken back here, time and again"))


def _check_place(source: Source, question: AnyQuestion) -> None:
    followed = source.partitions(question.topic)
    if followed is None:
        raise _Elsewhere(UnknownTopic("this replica does not follow the topic"))
    if not question.partitions:
        raise InvalidEvent("a question names no partition")
    for number in question.partitions:
        if number not in followed:
            raise _Elsewhere(InvalidEvent("this replica does not follow the state partition", partition=number))


def _standing(source: Source, question: AnyQuestion) -> Standing:
    numbers = {*question.partitions, *(need.partition for need in question.needs)}
    try:
        return source.standing(question.topic, numbers)
    except ParamstreamError as stopped:
        raise _Elsewhere(stopped) from None


def _unmet(source: Source, question: AnyQuestion, standing: Standing) -> Waiting | None:
    """What must have been seen and has not. Raises `EventLost` for what must stand and was lost."""
    waits: Waiting | None = None
    for need in question.needs:
        applied = standing.positions.get(need.partition)
        if applied is None:
            # Of what this replica does not follow, it shows nothing either.
            continue
        lost = source.is_lost((question.topic, need.partition), need.position)
        if lost and need.must_stand:
            raise EventLost(
                "the position to be seen is above the end of its epoch: the event was lost",
                partition=need.partition,
                position=need.position,
                remedy="Publish it again, if it is still wanted",
            )
        if not lost and applied < need.position:
            late = ParamstreamTimeout(
                f"what must be seen is not applied yet: {show(need.position)}, and applied is {show(applied)}",
                partition=need.partition,
                position=need.position,
            )
            waits = Waiting(question.wait_s, declined(question.id, late, elsewhere=True))
    return waits


def _rows(source: Source, question: LookUp, bulk: memoryview, before: Standing, dim: int, dtype: str) -> bytes:
    if len(bulk) % KEY.itemsize or not 0 < len(bulk) // KEY.itemsize <= MAX_KEYS:
        raise InvalidEvent(f"{len(bulk)} bytes are no 1 to {MAX_KEYS} row keys", item=question.table)
    row_bytes = dim * DTYPES[dtype].itemsize
    keys = np.frombuffer(bulk, KEY)[: max(1, MAX_ANSWER_BYTES // (row_bytes + 1))]
    values, found = source.lookup(question.topic, question.table, keys)
    head = FoundRows(question.id, len(keys), dim, dtype, _seen(question, before))
    return encode_frame(head, _flat(values), _flat(found))


def _entries(source: Source, question: GetEntries, before: Standing) -> bytes:
    if not 0 < len(question.keys) <= MAX_KEYS:
        raise InvalidEvent(f"{len(question.keys)} keys are no 1 to {MAX_KEYS}")
    values: list[bytes | None] = []
    nbytes = 0
    for key in question.keys:
        check_key(key)
        value = source.get(question.topic, key)
        nbytes += len(value or b"")
        if values and nbytes > MAX_ANSWER_BYTES:
            break
        values.append(value)
    sizes = tuple(-1 if value is None else len(value) for value in values)
    head = FoundEntries(question.id, sizes, _seen(question, before))
    return encode_frame(head, *(value for value in values if value))


def _seen(question: AnyQuestion, standing: Standing) -> tuple[tuple[int, int], ...]:
    return tuple((number, standing.positions[number]) for number in question.partitions)


def _flat(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


# --- the other side: what an answer must be to be believed -----------------------------------------------------------------------


def read_rows(told: FoundRows, bulk: memoryview, asked: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """(values, found) of the first of `asked` keys, views of `bulk`. Raises `CorruptLog` where the answer is none."""
    dtype = DTYPES.get(told.dtype)
    if dtype is None or told.count > asked:
        raise CorruptLog(f"{asked} rows were asked for; the answer has {told.count} of {told.dtype!r}")
    if len(bulk) != told.count * (1 + told.dim * dtype.itemsize):
        raise CorruptLog(f"an answer has {len(bulk)} bytes for {told.count} rows of {told.dim} {told.dtype}")
    values, found = np.frombuffer(bulk[: -told.count], np.uint8), np.frombuffer(bulk[-told.count :], np.uint8)
    if found.max() > 1:
        raise CorruptLog("an answer says of a row neither that it is there nor that it is not")
    return values.view(dtype).reshape(told.count, told.dim), found.view(np.bool_)


def read_entries(told: FoundEntries, bulk: memoryview, asked: int) -> list[bytes | None]:
    """The values of the first of `asked` keys. Raises `CorruptLog` where the answer is none."""
    lengths = [max(0, size) for size in told.sizes]
    ends = list(accumulate(lengths))
    if not 0 < len(ends) <= asked or ends[-1] != len(bulk):
        raise CorruptLog(f"an answer has {len(bulk)} bytes for {len(told.sizes)} values, of {asked} asked for")
    return [
        None if size < 0 else bytes(bulk[end - length : end])
        for size, length, end in zip(told.sizes, lengths, ends, strict=True)
    ]
