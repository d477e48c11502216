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

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

from ..consistency.vector import PartitionId, VersionVector
from ..errors import InvalidEvent, ParamstreamError, SchemaMismatch, VersionConflict
from ..events.digest import version_digest
from ..events.kinds import Gradients, PartRef, Rows, TensorSpec, ValidFor
from ..events.limits import check_version
from ..events.recording import Token
from ..events.row_keys import row_keys
from ..events.tensors import Tensor, describe_tensors
from ..transport.calls import ListVersions, TopicRecord, VersionRecord
from .calls import Call, Draft
from .dense_gradients import dense_gradient_drafts
from .directory import Directory
from .entries import Entry, Key, delete_draft, entry_of, pairs_of, put_drafts, ttl_nanoseconds
from .observing import Observable, Recorded
from .partition_state import PartitionState
from .receipt import Receipt
from .rows import delete_drafts, gradient_values, row_drafts, row_values
from .sealing import Nameable, Sealing
from .session import Session
from .staging import commit_draft, stage
from .table_files import TableFile
from .weights import (
    Group,
    cut,
    group_part,
    group_tensors,
    specs_of,
)

Progress = Callable[[int], None]
"""Told of bytes."""


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
        seal: bool = True,
        rewind: bool = False,
        *,
        timeout: float = 30.0,
        progress: Progress = lambda nbytes: None,
    ) -> Receipt:
        """Publish one complete set of weights, sealed as `version`; or, with `seal=False`, this rank's part of it.

        `module_or_mapping`: a torch module (parameters and buffers of its `state_dict()`), or a mapping of numpy or torch
        arrays of any strides, on any device; nested mappings get dotted names. `version`: 0 ≤ v < 2⁶³, above the newest
        one unless `rewind` says that the higher ones are superseded. The same version with the same values again gets the
        receipt of the first. `timeout` bounds each wait for the window. `progress` is told of bytes as they are sent.

        `seal=False` only stages: nobody sees the tensors before somebody's `commit` names the receipt, or its text. They are
        checked against those of the topic that have their names, with `schema="replace"` not at all; the rest, and `rewind`,
        are the commit's. What is never committed ends with the commit of this version or a higher one.

        Raises `InvalidEvent`, `SchemaMismatch` and `VersionConflict` before a byte leaves where the session knows enough;
        what only the broker can know comes with the receipt.
        """
        check_version(version)
        _check_choice("mode", mode, ("auto", "full", "delta"))
        _check_choice("schema", schema, ("same", "replace"))
        if mode == "delta":
            raise InvalidEvent("deltas cannot be published yet", version=version, remedy='Use mode="auto" or "full"')
        if rewind and not seal:
            raise InvalidEvent("a part does not rewind", version=version, remedy="Say rewind=True to `commit`")
        weights = self._topic.id, self._topic.partitions
        self._session.partition(weights, timeout)
        self._session.wait_for_schema(weights, timeout)
        try:
            groups = self._groups(weights, describe_tensors(module_or_mapping), schema, seal, timeout)
        except ParamstreamError as error:
            error.topic, error.version = self.topic, version
            raise
        self._observe_now()
        if not seal:
            return self._publish_part(weights, version, groups, timeout, progress)
        known = self._sealed(weights, version, groups, rewind, timeout)
        return known or self._publish_groups(weights, version, groups, schema, rewind, timeout, progress)

    def commit(
        self,
        version: int,
        parts: Iterable[Nameable],
        schema: Literal["same", "replace"] = "same",
        rewind: bool = False,
        *,
        timeout: float = 30.0,
    ) -> Receipt:
        """Seal what several ranks published with `seal=False` as `version`, for all readers at once.

        `parts`: their receipts, of this process or parsed from the text of other ones; together they are the whole set of
        tensors, each from one rank. Beside them, receipts or vectors of rows and KV that the version is to be shown with:
        they must be durable before the commit goes, and a replica has applied them before it serves the version.

        Blocks until all of that is accepted and durable, and until the owner has said what the parts come to; later calls of
        this producer wait behind it. Raises `ParamstreamTimeout` after `timeout` s, and nothing was sent then. Refused, naming
        part and producer: parts that overlap, or are of another version or topic (`InvalidEvent`), tensors of the schema that
        are missing or differ (`SchemaMismatch`), what is lost (`EventLost`), a version that stands (`VersionConflict`).
        Committing the same parts again gets the receipt of the first time.
        """
        check_version(version)
        _check_choice("schema", schema, ("same", "replace"))
        deadline = time.monotonic() + timeout
        self._session.partition((self._topic.id, self._topic.partitions), timeout)
        self._observe_now()
        return Sealing(
            self._session, self._directory, self._topic, version, schema, rewind, timeout, deadline
        ).run(parts)  # fmt: skip

    def _groups(
        self, weights: PartitionId, tensors: Mapping[str, Tensor], schema: str, seal: bool, timeout: float
    ) -> list[Group]:
        group = group_tensors if seal else group_part
        if schema == "replace":
            return group(tensors, None)
        try:
            return group(tensors, self._session.partition(weights, timeout).schema)
        except SchemaMismatch:
            # Another producer may have replaced the schema since this session learned it.
            return group(tensors, self._session.partition_again(weights, timeout).schema)

    def _sealed(
        self, weights: PartitionId, version: int, groups: Sequence[Group], rewind: bool, timeout: float
    ) -> Receipt | None:
        try:
            return self._sealed_before(self._session.partition(weights, timeout), version, groups, rewind)
        except VersionConflict:
            # Another producer may have rewound since this session learned what is sealed.
            return self._sealed_before(self._session.partition_again(weights, timeout), version, groups, rewind)

    def _sealed_before(
        self, state: PartitionState, version: int, groups: Sequence[Group], rewind: bool
    ) -> Receipt | None:
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
        self,
        weights: PartitionId,
        version: int,
        groups: Sequence[Group],
        schema: str,
        rewind: bool,
        timeout: float,
        progress: Progress,
    ) -> Receipt:
        """Send chunks, parts and the commit, each as soon as the window has room: no more than that is ever held."""
        session = self._session
        call = Call((weights,), self._topic.persistence, whole=True, version=version)
        session.begin(call)
        with session.streaming(call):
            parts, specs = self._stage(call, weights, version, groups, timeout, progress)
            call.schema = specs
            session.add(call, commit_draft(weights, version, parts, specs, schema, rewind), timeout)
        return session.finish(call)

    def _publish_part(
        self, weights: PartitionId, version: int, groups: Sequence[Group], timeout: float, progress: Progress
    ) -> Receipt:
        """Send chunks and parts, and no commit: the receipt says which parts."""
        session = self._session
        call = Call((weights,), self._topic.persistence, whole=True, version=version)
        session.begin(call)
        with session.streaming(call):
            call.parts, _ = self._stage(call, weights, version, groups, timeout, progress)
        return session.finish(call)

    def _stage(
        self,
        call: Call,
        weights: PartitionId,
        version: int,
        groups: Sequence[Group],
        timeout: float,
        progress: Progress,
    ) -> tuple[tuple[PartRef, ...], tuple[TensorSpec, ...]]:
        """Send the chunks and parts of `call`; returns the parts, and all their tensors."""
        session = self._session
        sequences, specs = stage(weights, version, groups, lambda draft: session.add(call, draft, timeout), progress)
        return tuple(PartRef(session.name, session.incarnation, sequence) for sequence in sequences), specs

    # --- KV ---------------------------------------------------------------------------------------------------------------

    def put(
        self,
        key: Key,
        value: Any,
        ttl: float | None = None,
        valid_for: int | None = None,
        *,
        timeout: float = 30.0,
    ) -> Receipt:
        """Write one entry. `key`: bytes or str (its UTF-8), up to 4 KiB; `value`: any buffer up to 768 KiB, copied.

        `ttl`: seconds after its sequencing at which the entry is gone. `valid_for`: a version of the topic's weights beside
        which alone replicas answer with it, else they miss. Where the version is sealed (the broker is asked), that very
        commit counts, not one that seals the number again; where it is not, put the entry first and give its receipt to the
        `commit` of that version.
        """
        return self._put([entry_of(key, value, ttl_nanoseconds(ttl), self._valid_for(valid_for, timeout))], timeout)

    def put_many(
        self,
        items: Mapping[Any, Any] | Iterable[tuple[Key, Any]],
        ttl: float | None = None,
        valid_for: int | None = None,
        *,
        timeout: float = 30.0,
    ) -> Receipt:
        """Write many entries in one call: a mapping, or pairs of (key, value). The last one of a repeated key wins.

        Entries of different partitions go side by side. Nothing is sent if one of them is not valid.
        """
        ttl_ns, tied = ttl_nanoseconds(ttl), self._valid_for(valid_for, timeout)
        return self._put([entry_of(key, value, ttl_ns, tied) for key, value in pairs_of(items)], timeout)

    def delete(self, key: Key, *, timeout: float = 30.0) -> Receipt:
        """Remove an entry; one that does not exist stays away."""
        return self._publish([delete_draft(self._topic, key)], timeout)

    def _valid_for(self, version: int | None, timeout: float) -> ValidFor | None:
        """What entries for `version` carry: where it is sealed, the position of its commit."""
        if version is None:
            return None
        check_version(version)
        sealed: list[VersionRecord] = self._session.ask(ListVersions(self._topic.id), list[VersionRecord], timeout)
        standing = (each.position for each in sealed if each.version == version and not each.superseded)
        return ValidFor(version, next(standing, 0))

    def _put(self, entries: Sequence[Entry], timeout: float) -> Receipt:
        return self._publish(put_drafts(self._topic, entries), timeout)

    # --- rows and gradients -----------------------------------------------------------------------------------------------

    def publish_rows(self, table: str, keys: Any, rows: Any, *, timeout: float = 30.0) -> Receipt:
        """Set rows: `keys` int64 (n,), `rows` (n, dim) of the table's dtype, as numpy arrays or torch tensors; keys may be a sequence
        of ints too. The last row of a repeated key wins.

        Keys of different partitions go side by side. Without keys nothing is sent, and the receipt is done. Raises `UnknownTopic`
        where there is no such table, and `InvalidEvent` for another shape or dtype, before a byte leaves.
        """
        definition, flat = self._session.table(self._topic, table, timeout), row_keys(table, keys)
        drafts = row_drafts(self._topic, definition, Rows, flat, row_values(definition, flat, rows))
        return self._publish(drafts, timeout)

    def import_table(self, table: str, path: str | os.PathLike[str], *, timeout: float = 30.0) -> Receipt:
        """Publish the rows of a safetensors file with `keys`, int64 (n,), and `rows`, (n, dim) of the table's dtype, as one call, in the
        order of the file; other tensors are passed over, and the state of an optimizer starts anew.

        The file is mapped and goes out as the window has room, which may be waited for up to `timeout` s each time: it may be larger
        than memory. Raises `InvalidEvent` that names the file for one that does not fit the table, before a byte leaves, and as
        `publish_rows`; where it stalls, `ParamstreamTimeout` says what was accepted.
        """
        definition = self._session.table(self._topic, table, timeout)
        file = TableFile(Path(path), definition)
        partitions = tuple((self._topic.id, number) for number in file.partitions(self._topic.partitions))
        call = self._call(partitions, timeout)
        self._session.begin(call)
        with self._session.streaming(call):
            for keys, rows in file.pieces():
                for draft in row_drafts(self._topic, definition, Rows, keys, row_values(definition, keys, rows)):
                    self._session.add(call, draft, timeout)
        return self._session.finish(call)

    def publish_gradients(
        self,
        table: str,
        keys: Any,
        grads: Any,
        nonfinite: Literal["refuse", "pass"] = "refuse",
        *,
        timeout: float = 30.0,
    ) -> Receipt:
        """Gradients for the table's optimizer: `keys` and `grads` as of `publish_rows`. A key that repeats in one call is summed
        first, in the order given, and its row makes one step.

        Raises as `publish_rows`; `InvalidEvent` also where the table has no optimizer, and under `nonfinite="refuse"` for NaN and
        infinities, with the keys named: nothing of the call is sent then. With "pass" they are applied like any number, and a row that
        takes a NaN stays one until it is written or deleted.
        """
        definition = self._session.table(self._topic, table, timeout, takes_gradients=True)
        flat = row_keys(table, keys)
        values = gradient_values(definition, flat, grads, nonfinite)
        return self._publish(row_drafts(self._topic, definition, Gradients, flat, values), timeout)

    def publish_dense_gradients(
        self,
        mapping: object,
        step: int,
        nonfinite: Literal["refuse", "pass"] = "refuse",
        *,
        timeout: float = 30.0,
    ) -> Receipt:
        """Gradients of whole tensors at a training step, for a processor to use (`ps.parameter_server`); no replica's state changes.

        `mapping`: numpy or torch arrays of any strides, on any device, by name; nested mappings get dotted names. All of them go
        to the topic's first state partition, in order; large ones are cut. `step`: 0 ≤ step < 2⁶³, what the processor sums by.
        It is all or nothing: once an event of it is refused or lost, the rest is not sent. `nonfinite="refuse"` raises
        `InvalidEvent` naming the tensor where a value is NaN or infinite, "pass" sends it as it is.
        """
        drafts = dense_gradient_drafts(self._topic, mapping, step, nonfinite)
        return self._publish(drafts, timeout, whole=True)

    def delete_rows(self, table: str, keys: Any, *, up_to: int | None = None, timeout: float = 30.0) -> Receipt:
        """Remove rows, with their optimizer's state: `keys` as of `publish_rows`. What is not there stays away.

        `up_to`, a position: only rows that were last written at or below it, each in its own partition.
        """
        definition = self._session.table(self._topic, table, timeout)
        return self._publish(delete_drafts(self._topic, definition, row_keys(table, keys), up_to), timeout)

    # --- order, waiting, the end ------------------------------------------------------------------------------------------

    def observe(self, vector_or_replica: VersionVector[str] | Observable) -> None:
        """Later publishes of this producer depend on what the vector, replica or receipt has seen.

        Topics that were deleted since are left out. Raises `UnknownTopic` for a vector that names what never was a topic.
        """
        seen, token = vector_or_replica, None
        if isinstance(seen, VersionVector):
            ids = self._directory.standing_ids(seen, must_be_known=True)
        elif isinstance(cast(object, getattr(seen, "vector", None)), VersionVector):
            vector, token = self._seen_by(seen)
            ids = self._directory.standing_ids(vector)
        else:
            raise InvalidEvent(
                f"a vector, replica or receipt can be observed, not {type(seen).__name__}", topic=self.topic
            )
        self._session.observe(ids, token)

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
            vector, token = self._seen_by(self._observes)
            if vector is not self._observed:
                self._session.observe(self._directory.standing_ids(vector), token)
                self._observed = vector

    def _seen_by(self, seen: Observable) -> tuple[VersionVector[str], Token | None]:
        if self._session.records and isinstance(seen, Recorded):
            return seen.observed()
        return seen.vector, None

    def _publish(self, drafts: Sequence[Draft], timeout: float, *, whole: bool = False) -> Receipt:
        """Send the parts of one call, side by side where they go to several partitions."""
        partitions = tuple(dict.fromkeys(draft.partition for draft in drafts))
        return self._session.publish(self._call(partitions, timeout, whole=whole), drafts, timeout)

    def _call(self, partitions: tuple[PartitionId, ...], timeout: float, *, whole: bool = False) -> Call:
        """A call whose events go to these partitions."""
        self._observe_now()
        for partition in partitions:
            self._session.partition(partition, timeout)
        return Call(partitions or ((self._topic.id, 0),), self._topic.persistence, whole=whole)


def _check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidEvent(f"{what} must be one of {', '.join(choices)}, not {value!r}")
