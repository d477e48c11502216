"""`client.lookup` and `client.get`: what is asked, what the answers must have seen, and how they come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ...consistency.vector import VersionVector
from ...errors import EventLost, InvalidEvent
from ...events.arrays import Array, ArrayKind, default_arrays
from ...events.limits import check_name
from ...events.row_keys import Keys, partitions_of, row_keys
from ...events.validate import key_bytes
from ...transport.calls import TopicRecord
from ...transport.directory import Directory
from ...transport.lookup_lines import Lines
from ...transport.lookups import Need
from ..row_reads import handed_out
from ..scope import time_left
from ..waits import Accepted
from .hot import HotRows, HotTopic, HotTopics
from .questions import EntriesQuestion, Places, Question, RowsQuestion
from .reads import Asking, Reads

AtLeast = VersionVector[str] | Accepted | None

Found = tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]

_T = TypeVar("_T")


class Lookups:
    """Of one client. Thread-safe; each call blocks its caller alone."""

    def __init__(self, link: Asking, directory: Directory, hot: HotTopics | None = None) -> None:
        """`hot`: keeps copies of rows that are looked up; closed with this."""
        self._directory = directory
        self._hot = hot
        self._lines = Lines()
        self._reads = Reads(link, self._lines)
        self._shapes: dict[tuple[int, str], npt.NDArray[Any]] = {}
        """(topic, table) → no rows at all, of its dim and dtype, as the first answer told."""

    def rows(
        self, topic: str, table: str, keys: object, at_least: AtLeast, arrays: ArrayKind | None, timeout: float
    ) -> tuple[Array, Array, VersionVector[str]]:
        """(values, found, what all of it has seen)."""
        check_name("table", table)
        flat = row_keys(table, keys)

        def ask(record: TopicRecord, needs: Mapping[int, Need], deadline: float) -> tuple[Found, dict[int, int]]:
            if not len(flat) and (record.id, table) not in self._shapes:
                # What a row is like is learnt from one, whatever its key.
                self._found(record, table, np.zeros(1, np.int64), needs, timeout, deadline)
            return self._found(record, table, flat, needs, timeout, deadline)

        (values, found), seen = self._ask(topic, at_least, timeout, ask, weights=False)
        kind = arrays or default_arrays()
        return handed_out(values, kind), handed_out(found, kind), seen

    def entries(
        self, topic: str, keys: Iterable[bytes | str], at_least: AtLeast, timeout: float
    ) -> tuple[list[bytes | None], VersionVector[str]]:
        """(values in the order asked, what all of them have seen)."""
        raw = [key_bytes(key) for key in keys]

        def ask(
            record: TopicRecord, needs: Mapping[int, Need], deadline: float
        ) -> tuple[EntriesQuestion, dict[int, int]]:
            question = EntriesQuestion(raw, record.partitions)
            return question, self._gather(record, question, needs, timeout, deadline)

        question, seen = self._ask(topic, at_least, timeout, ask, weights=True)
        return question.values, seen

    def close(self, timeout: float) -> None:
        """Look-ups that are under way end with an error."""
        self._lines.close(timeout)
        if self._hot is not None:
            self._hot.close(timeout)

    def hot_rows(self) -> HotRows:
        return HotRows(0, 0, 0, 0, 0) if self._hot is None else self._hot.counters()

    # --- inside -----------------------------------------------------------------------------------------------------------------

    def _found(
        self, record: TopicRecord, table: str, keys: Keys, needs: Mapping[int, Need], timeout: float, deadline: float
    ) -> tuple[Found, dict[int, int]]:
        """The rows, of which those that are here are not asked for; and of each partition what all of its rows have seen."""
        partitions = state_partitions_of(keys, record.partitions)
        hot = self._hot.of(record, deadline) if self._hot is not None else None
        copied = hot.read(table, keys, partitions, needs) if hot is not None and len(keys) else None
        if copied is None:
            return self._asked(record, table, keys, partitions, hot, needs, timeout, deadline)
        (values, there, known), seen = copied
        missing = np.flatnonzero(~known)
        if len(missing):
            rest, told = self._asked(
                record, table, keys[missing], partitions[missing], hot, needs, timeout, deadline
            )  # fmt: skip
            values[missing], there[missing] = rest
            seen = {**told, **{number: min(at, told.get(number, at)) for number, at in seen.items()}}
        return (values, there), seen

    def _asked(
        self, record: TopicRecord, table: str, keys: Keys, partitions: Places, hot: HotTopic | None,
        needs: Mapping[int, Need], timeout: float, deadline: float,
    ) -> tuple[Found, dict[int, int]]:  # fmt: skip
        question = RowsQuestion(table, keys, partitions, self._shapes.get((record.id, table)))
        seen = self._gather(record, question, needs, timeout, deadline)
        values, found = question.result()
        self._shapes.setdefault((record.id, table), values[:0].copy())
        if hot is not None and len(keys):
            hot.keep(table, keys, partitions, values, found, seen)
        return (values, found), seen

    def _gather(
        self, record: TopicRecord, question: Question, needs: Mapping[int, Need], timeout: float, deadline: float
    ) -> dict[int, int]:
        asked = set(np.unique(question.partitions).tolist()) if needs else set[int]()
        needed = {number: need for number, need in needs.items() if number in asked or number == record.partitions}
        return self._reads.gather(record, question, needed, timeout, deadline)

    def _ask(
        self,
        topic: str,
        at_least: AtLeast,
        timeout: float,
        ask: Callable[[TopicRecord, Mapping[int, Need], float], tuple[_T, dict[int, int]]],
        *,
        weights: bool,
    ) -> tuple[_T, VersionVector[str]]:
        deadline = time.monotonic() + timeout

        def once() -> tuple[_T, VersionVector[str]]:
            record = self._directory.topic(topic)
            needs = self._needs(record, at_least, deadline, weights=weights)
            try:
                found, seen = ask(record, needs, deadline)
            except EventLost:
                if at_least is None or isinstance(at_least, VersionVector) or not at_least.goes_again:
                    raise
                # The replica may have heard of the loss before the producer did.
                at_least.durable.result(time_left(deadline))
                found, seen = ask(record, self._needs(record, at_least, deadline, weights=weights), deadline)
            return found, VersionVector({(topic, number): at for number, at in seen.items()})

        return self._directory.of_topics([topic], once)

    def _needs(self, record: TopicRecord, at_least: AtLeast, deadline: float, *, weights: bool) -> dict[int, Need]:
        """What of `at_least` concerns the topic's state partitions, and its weights where entries may depend on a version."""
        if at_least is None:
            return {}
        if isinstance(at_least, VersionVector):
            vector = written = at_least
            self._directory.standing_ids(vector, must_be_known=True)
        elif not hasattr(cast(object, at_least), "accepted"):
            raise InvalidEvent(f"at_least is a receipt or a version vector, not {type(at_least).__name__}")
        else:
            vector, written = at_least.accepted.result(time_left(deadline)), at_least.positions
        last = record.partitions if weights else record.partitions - 1
        return {
            number: Need(number, at, written.get((name, number)) == at)
            for (name, number), at in vector.items()
            if name == record.name and number <= last
        }


def state_partitions_of(keys: Keys, partitions: int) -> Places:
    if partitions == 1:
        return np.zeros(len(keys), np.int64)
    return partitions_of(keys, partitions).astype(np.int64)
