"""The publisher that users hold: weights, KV, rows and gradients into one topic.

    pub = client.publisher("model", producer="trainer-0")
    receipt = pub.publish_weights(model, version=step)       # returns once the values are copied
    receipt.accepted.result()                                # sequenced by the broker
    receipt.durable.result()                                 # in the log for good
    pub.put("learning-rate", b"3e-4", ttl=60.0)
    pub.flush()                                              # all of it durable

Bad input raises before a byte leaves. A publisher is thread-safe; calls of one producer name keep their order, whichever
publisher of it they were made on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, cast

import numpy as np

from ..consistency.vector import PartitionId, VersionVector
from ..errors import InvalidEvent, ParamstreamError, UnknownTopic, VersionConflict
from ..events.arrays import row_major
from ..events.digest import partition_of, version_digest
from ..events.kinds import Commit, Delete, Gradients, Part, PartRef, Put, PutItem, Rows, Table, TensorSpec
from ..events.limits import MAX_CHUNK_BYTES, check_version
from ..events.validate import check_key, check_put
from ..transport.messages import TopicRecord
from .calls import Call, Draft
from .directory import Directory
from .observing import Observable
from .partition_state import PartitionState
from .receipt import Receipt
from .rows import delete_drafts, row_drafts, row_keys, row_values
from .session import Session
from .weights import (
    Group,
    cut,
    describe_tensors,
    group_tensors,
    part_meta_nbytes,
    parts_of,
    segment_meta_nbytes,
    specs_of,
)

Key = bytes | bytearray | memoryview | str
_PUT_ITEM_BYTES = 24


class Publisher:
    """Publishes into one topic under one producer name. Made by `client.publisher`.

    Every `publish_*`, `put` and `delete` returns a `Receipt` once the values are copied. Where the broker's byte window is
    full it blocks up to `timeout`, then raises `BackpressureTimeout`.
    """

    def __init__(
        self, session: Session, topic: TopicRecord, directory: Directory, observes: Observable | None = None
    ) -> None:
        self._session = session
        self._topic = topic
        self._directory = directory
        self._observes = observes
        self._observed: VersionVector[str] | None = None
        self._closed = False
        session.retain()

    @property
    def topic(self) -> str:
        return self._topic.name

    @property
    def producer(self) -> str:
        return self._session.name

    # --- weights ------------------------------------------------------------------------------------------------------------

    def publish_weights(
        self,
        module_or_mapping: object,
        version: int,
        mode: Literal["auto", "full", "delta"] = "auto",
        schema: Literal["same", "replace"] = "same",
        rewind: bool = False,
        *,
        timeout: float = 30.0,
    ) -> Receipt:
        """Publish one complete set of weights, sealed as `version`.

        `module_or_mapping`: a torch module (parameters and buffers of its `state_dict()`), or a mapping of numpy or torch
        arrays of any strides, on any device; nested mappings get dotted names. `version`: 0 ≤ v < 2⁶³, above the newest
        one unless `rewind` says that the higher ones are superseded. The same version with the same values again gets the
        receipt of the first. `timeout` bounds each wait for the window.

        Raises `InvalidEvent`, `SchemaMismatch` and `VersionConflict` before a byte leaves where the session knows enough;
        what only the broker can know comes with the receipt.
        """
        check_version(version)
        _check_choice("mode", mode, ("auto", "full", "delta"))
        _check_choice("schema", schema, ("same", "replace"))
        if mode == "delta":
            raise InvalidEvent("deltas cannot be published yet", version=version, remedy='Use mode="auto" or "full"')
        weights = self._topic.id, self._topic.partitions
        state = self._session.partition(weights, timeout)
        self._session.wait_for_schema(weights, timeout)
        try:
            tensors = describe_tensors(module_or_mapping)
            groups = group_tensors(tensors, state.schema if schema == "same" else None)
        except ParamstreamError as error:
            error.topic, error.version = self.topic, version
            raise
        self._observe_now()
        known = self._sealed(state, version, groups, rewind)
        return known or self._publish_groups(weights, version, groups, schema, rewind, timeout)

    def _sealed(self, state: PartitionState, version: int, groups: Sequence[Group], rewind: bool) -> Receipt | None:
        """The receipt of the same version sealed before. Raises `VersionConflict` where it, or a higher one, stands."""
        if rewind or not state.sealed:
            return None
        newest = max(state.sealed, key=lambda sealed: sealed.position)
        before = state.sealed_as(version)
        if before is not None:
            digests: dict[str, bytes] = {}
            for _ in cut(version, groups, digests):
                pass
            specs = [spec for group in groups for spec in specs_of(group, digests, {})]
            if version_digest(specs) == before.digest:
                return self._session.already(state.id, self._topic.persistence, before.position, version)
        elif version > newest.version:
            return None
        problem = "the version is sealed with other values" if before else f"version {newest.version} is sealed already"
        raise VersionConflict(
            problem, topic=self.topic, version=version, remedy="Publish a higher version, or say rewind=True"
        )

    def _publish_groups(
        self, weights: PartitionId, version: int, groups: Sequence[Group], schema: str, rewind: bool, timeout: float
    ) -> Receipt:
        """Send chunks, parts and the commit, each as soon as the window has room: no more than that is ever held."""
        session = self._session
        call = Call((weights,), self._topic.persistence, whole=True, version=version)
        digests: dict[str, bytes] = {}
        chunks: dict[str, tuple[int, int]] = {}
        session.begin(call)
        with session.streaming(call):
            for chunk, bulk in cut(version, groups, digests):
                draft = Draft.of(weights, chunk, bulk, segment_meta_nbytes(chunk))
                sequence = session.add(call, draft, timeout)
                for segment in chunk.segments:
                    first, _ = chunks.get(segment.name, (sequence, sequence))
                    chunks[segment.name] = first, sequence
            parts = list(parts_of(version, (specs_of(group, digests, chunks) for group in groups)))
            specs: tuple[TensorSpec, ...] = tuple(spec for part in parts for spec in part.tensors)
            references = tuple(self._send_part(call, weights, part, timeout) for part in parts)
            call.schema = specs
            commit = Commit(version, references, version_digest(specs), schema, rewind)
            session.add(call, Draft.of(weights, commit, (), 64 + 64 * len(references)), timeout)
        return session.finish(call)

    def _send_part(self, call: Call, weights: PartitionId, part: Part, timeout: float) -> PartRef:
        sequence = self._session.add(call, Draft.of(weights, part, (), part_meta_nbytes(part)), timeout)
        return PartRef(self._session.name, self._session.incarnation, sequence)

    # --- KV ---------------------------------------------------------------------------------------------------------------

    def put(self, key: Key, value: Any, ttl: float | None = None, *, timeout: float = 30.0) -> Receipt:
        """Write one entry. `key`: bytes or str (its UTF-8), up to 4 KiB; `value`: any buffer up to 768 KiB, copied.

        `ttl`: seconds after its sequencing at which the entry is gone.
        """
        return self._put([_entry(key, value, _ttl_ns(ttl))], timeout)

    def put_many(
        self, items: Mapping[Any, Any] | Iterable[tuple[Key, Any]], ttl: float | None = None, *, timeout: float = 30.0
    ) -> Receipt:
        """Write many entries in one call: a mapping, or pairs of (key, value). The last one of a repeated key wins.

        Entries of different partitions go side by side. Nothing is sent if one of them is not valid.
        """
        ttl_ns = _ttl_ns(ttl)
        pairs = cast(Iterable[tuple[Key, Any]], items.items() if isinstance(items, Mapping) else items)
        return self._put([_entry(key, value, ttl_ns) for key, value in pairs], timeout)

    def delete(self, key: Key, *, timeout: float = 30.0) -> Receipt:
        """Remove an entry; one that does not exist stays away."""
        name = _key(key)
        check_key(name)
        partition = self._topic.id, partition_of(name, self._topic.partitions)
        return self._publish([Draft.of(partition, Delete((name,)), (), len(name) + 16)], timeout)

    def _put(self, entries: Sequence[tuple[PutItem, memoryview]], timeout: float) -> Receipt:
        by_partition: dict[int, list[tuple[PutItem, memoryview]]] = {}
        for item, value in entries:
            number = partition_of(item.key, self._topic.partitions)
            by_partition.setdefault(number, []).append((item, value))
        drafts: list[Draft] = []
        for number, own in by_partition.items():
            drafts.extend(_put_drafts((self._topic.id, number), own))
        return self._publish(drafts, timeout)

    # --- rows and gradients -----------------------------------------------------------------------------------------------

    def publish_rows(self, table: str, keys: Any, rows: Any, *, timeout: float = 30.0) -> Receipt:
        """Set rows: `keys` int64 (n,), `rows` (n, dim) of the table's dtype. The last row of a repeated key wins."""
        return self._publish_table(table, Rows, keys, rows, timeout)

    def publish_gradients(self, table: str, keys: Any, grads: Any, *, timeout: float = 30.0) -> Receipt:
        """Gradients for the table's optimizer: `keys` int64 (n,), `grads` (n, dim) of the table's dtype.

        A key that repeats in one call is summed first, in the order given.
        """
        return self._publish_table(table, Gradients, keys, grads, timeout)

    def delete_rows(self, table: str, keys: Any, *, timeout: float = 30.0) -> Receipt:
        """Remove rows: `keys` int64 (n,)."""
        self._table(table, timeout)
        return self._publish(delete_drafts(self._topic, table, row_keys(table, keys)), timeout)

    def _publish_table(self, table: str, kind: type[Rows | Gradients], keys: Any, rows: Any, timeout: float) -> Receipt:
        definition = self._table(table, timeout)
        flat = row_keys(table, keys)
        drafts = row_drafts(self._topic, definition, kind, flat, row_values(definition, flat, rows))
        return self._publish(drafts, timeout)

    def _table(self, table: str, timeout: float) -> Table:
        first = self._topic.id, 0
        found = self._session.partition(first, timeout).tables.get(table)
        found = found or self._directory.tables(self._topic.id).get(table)
        found = found or self._session.partition_again(first, timeout).tables.get(table)
        if found is None:
            raise UnknownTopic(
                "the topic has no such table", topic=self.topic, item=table, remedy="Make it with client.create_table"
            )
        return found

    # --- order, waiting, the end ------------------------------------------------------------------------------------------

    def observe(self, vector_or_replica: VersionVector[str] | Observable) -> None:
        """Later publishes of this producer depend on what the vector, replica or receipt has seen."""
        seen = vector_or_replica
        vector = seen if isinstance(seen, VersionVector) else seen.vector
        self._session.observe(self._directory.to_ids(vector))

    def flush(self, timeout: float = 30.0) -> None:
        """Wait until all that this producer published is durable (accepted, under persistence "none").

        Raises the first error that an event has ended with since the last flush, for example `EventLost`.
        """
        self._session.flush(timeout)

    def close(self, timeout: float = 30.0) -> None:
        """Wait until everything is answered and give the producer name back, unless another publisher uses it.

        Returns within `timeout`; `OutcomeUnknown` then names the sequences without an answer. A second close does nothing.
        """
        if not self._closed:
            self._closed = True
            self._session.release(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _observe_now(self) -> None:
        if self._observes is not None:
            vector = self._observes.vector
            if vector is not self._observed:
                self.observe(vector)
                self._observed = vector

    def _publish(self, drafts: Sequence[Draft], timeout: float) -> Receipt:
        """Send the parts of one call, side by side where they go to several partitions."""
        partitions = tuple(dict.fromkeys(draft.partition for draft in drafts))
        self._observe_now()
        for partition in partitions:
            self._session.partition(partition, timeout)
        call = Call(partitions or ((self._topic.id, 0),), self._topic.persistence)
        return self._session.publish(call, drafts, timeout)


def _check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidEvent(f"{what} must be one of {', '.join(choices)}, not {value!r}")


def _key(key: object) -> bytes:
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise InvalidEvent("a str key must be valid UTF-8", item=repr(key)) from error
    if not isinstance(key, bytes | bytearray | memoryview):
        raise InvalidEvent(f"a key is bytes or str, not {type(key).__name__}", item=repr(key))
    return bytes(cast(bytes, key))


def _value(key: bytes, value: Any) -> memoryview:
    """The bytes of any buffer, flat."""
    if isinstance(value, np.ndarray):
        return row_major(repr(key), cast(Any, value))
    try:
        view = memoryview(value)
    except TypeError as error:
        raise InvalidEvent(
            f"a value is a buffer, not {type(value).__name__}", item=repr(key[:64]), remedy="Encode it to bytes"
        ) from error
    return view if view.format == "B" and view.ndim == 1 and view.c_contiguous else memoryview(bytes(view))


def _ttl_ns(ttl: float | None) -> int | None:
    if ttl is None:
        return None
    given = cast(object, ttl)
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise InvalidEvent(f"a TTL is a number of seconds, not {ttl!r}")
    return int(ttl * 1e9)


def _entry(key: object, value: Any, ttl_ns: int | None) -> tuple[PutItem, memoryview]:
    name = _key(key)
    data = _value(name, value)
    item = PutItem(name, len(data), ttl_ns)
    check_put(item)
    return item, data


def _put_drafts(partition: PartitionId, entries: Sequence[tuple[PutItem, memoryview]]) -> Iterable[Draft]:
    """As many events as the entries need, in their order."""
    held: list[tuple[PutItem, memoryview]] = []
    nbytes = 0
    for item, value in entries:
        more = item.nbytes + len(item.key) + _PUT_ITEM_BYTES
        if held and nbytes + more > MAX_CHUNK_BYTES:
            yield _put_draft(partition, held)
            held, nbytes = [], 0
        held.append((item, value))
        nbytes += more
    if held:
        yield _put_draft(partition, held)


def _put_draft(partition: PartitionId, held: Sequence[tuple[PutItem, memoryview]]) -> Draft:
    meta_nbytes = sum(len(item.key) + _PUT_ITEM_BYTES for item, _ in held)
    return Draft.of(partition, Put(tuple(item for item, _ in held)), tuple(value for _, value in held), meta_nbytes)
