"""What a processor's `step` writes to: a publisher whose events carry the input that they were made from.

Nothing is sent while `step` runs. Once it has returned, `deliver` sends what it wrote, in that order, and leaves out what the
sink holds already. So a step that raises has sent nothing, and a step that is repeated after a crash writes nothing twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..consistency.vector import VersionVector
from ..errors import BackpressureTimeout, EventLost, InvalidEvent, OutcomeUnknown
from ..events.arrays import row_major
from ..events.kinds import Gradients, PartRef, Rows
from ..events.limits import check_version
from ..events.row_keys import row_keys
from ..events.tensors import Tensor, describe_tensors
from ..transport.calls import AwaitDurable, TopicRecord
from .calls import Call, Draft
from .dense_gradients import dense_gradient_drafts
from .directory import Directory
from .entries import Key, delete_draft, entry_of, pairs_of, put_drafts, ttl_nanoseconds
from .marks import Mark, Marks
from .receipt import Receipt
from .rows import delete_drafts, gradient_values, row_drafts, row_values
from .session import Session
from .staging import commit_draft, stage
from .weights import Group

PATIENCE_S = 0.5
"""How long one try to get room in the broker's window may take; between tries the task looks whether it is to stop."""

GOES_ON_S = 30.0
"""How long the next event of a call may take of which some is sent. Past it the task goes back, and sends the rest anew."""


@dataclass(frozen=True, slots=True)
class _Version:
    """A publish of weights: its values are copied, every tensor travels by itself."""

    version: int
    groups: tuple[Group, ...]
    schema: str
    rewind: bool


class Output:
    """The `out` of one task, over one session of its name; a task that goes back makes another one.

    What `step` calls returns None once the values are copied: where an event will stand is not known yet, and would be
    another place in another run. Raises `InvalidEvent` for bad input, and outside of `step`. How a call is cut into events
    rests on its arguments alone. One thread uses it.
    """

    def __init__(self, session: Session, topic: TopicRecord, directory: Directory) -> None:
        """`session` is open, halts at its first loss, and is this output's own."""
        self._session = session
        self._topic = topic
        self._directory = directory
        self._marks = Marks({})
        self._written: list[list[Draft] | _Version] | None = None
        self._given: deque[Receipt] = deque()
        self.given = 0
        """Calls that were sent."""
        self.durable = 0
        """How many of those, from the first on, are durable."""

    @property
    def topic(self) -> str:
        return self._topic.name

    @property
    def producer(self) -> str:
        return self._session.name

    # --- for `step` -------------------------------------------------------------------------------------------------------

    def put(self, key: Key, value: Any, ttl: float | None = None) -> None:
        """Write one entry; as `Publisher.put`."""
        self._write(put_drafts(self._topic, [entry_of(key, value, ttl_nanoseconds(ttl), None)]))

    def put_many(self, items: Mapping[Any, Any] | Iterable[tuple[Key, Any]], ttl: float | None = None) -> None:
        """Write many entries in one call; as `Publisher.put_many`."""
        ttl_ns = ttl_nanoseconds(ttl)
        self._write(put_drafts(self._topic, [entry_of(key, value, ttl_ns, None) for key, value in pairs_of(items)]))

    def delete(self, key: Key) -> None:
        """Remove an entry."""
        self._write([delete_draft(self._topic, key)])

    def publish_rows(self, table: str, keys: Any, rows: Any) -> None:
        """Set rows; as `Publisher.publish_rows`."""
        definition, flat = self._session.table(self._topic, table), row_keys(table, keys)
        self._write(row_drafts(self._topic, definition, Rows, flat, row_values(definition, flat, rows)))

    def publish_gradients(
        self, table: str, keys: Any, grads: Any, nonfinite: Literal["refuse", "pass"] = "refuse"
    ) -> None:
        """Gradients for the table's optimizer; as `Publisher.publish_gradients`."""
        definition = self._session.table(self._topic, table, takes_gradients=True)
        flat = row_keys(table, keys)
        values = gradient_values(definition, flat, grads, nonfinite)
        self._write(row_drafts(self._topic, definition, Gradients, flat, values))

    def publish_dense_gradients(
        self, mapping: object, step: int, nonfinite: Literal["refuse", "pass"] = "refuse"
    ) -> None:
        """Gradients of whole tensors at a step; as `Publisher.publish_dense_gradients`."""
        self._write(dense_gradient_drafts(self._topic, mapping, step, nonfinite))

    def delete_rows(self, table: str, keys: Any) -> None:
        """Remove rows: `keys` int64 (n,)."""
        definition = self._session.table(self._topic, table)
        self._write(delete_drafts(self._topic, definition, row_keys(table, keys)))

    def publish_weights(
        self,
        module_or_mapping: object,
        version: int,
        schema: Literal["same", "replace"] = "same",
        rewind: bool = False,
    ) -> None:
        """One complete set of weights, sealed as `version`; as `Publisher.publish_weights`.

        No tensors are tied: which arrays share their memory is no part of a state, and a crash would change it. The broker
        checks schema and version, and what it refuses stops the task.
        """
        check_version(version)
        if schema not in ("same", "replace"):
            raise InvalidEvent(f"schema must be 'same' or 'replace', not {schema!r}", version=version)
        groups = tuple(Group(_copied(tensor)) for tensor in describe_tensors(module_or_mapping).values())
        self._calls.append(_Version(version, groups, schema, rewind))

    # --- for the task -----------------------------------------------------------------------------------------------------

    def await_marks(self, timeout: float) -> bool:
        """Learn what the sink holds of this name, once that is durable: True if the sink holds anything.

        What was skipped is then as safe as what is sent. Raises `EventLost` where some of it turns out to be lost: another
        join tells what is left; `UnknownTopic` where the sink is gone.
        """
        self._session.check_joined(self._topic)
        if not self._session.has_joined(self._topic):
            # What such a partition holds will be known once it is served again; until then nothing can be skipped in it.
            raise OutcomeUnknown("a partition of the sink stands still", topic=self.topic, remedy="It is tried again")
        found = self._session.last_events
        held: dict[tuple[int, int], Mark] = {
            partition: last.source
            for partition, last in found.items()
            if last.source is not None and partition[0] == self._topic.id
        }
        if held:
            question = AwaitDurable(tuple((*partition, found[partition].position) for partition in held))
            lost: list[tuple[int, int, int]] = self._session.ask(question, list[tuple[int, int, int]], timeout)
            for _, number, at in lost:
                raise EventLost("an output is lost", topic=self.topic, partition=number, position=at)
        self._marks = Marks(held)
        return bool(held)

    def check_owner(self, timeout: float) -> None:
        """Raises `Fenced` where a newer session of the name was opened since: whoever goes back must not fence that one."""
        self._session.join(timeout)

    def begin(self) -> None:
        """`step` may write from here on. What a step wrote that did not return is dropped."""
        self._written = []

    def deliver(self, position: int, vector: VersionVector[str], stopping: Callable[[], bool]) -> None:
        """Send what `step` wrote for the input at `position`, which depends on `vector`.

        Blocks while the broker's window is full; raises `BackpressureTimeout` once `stopping` says so, else what `settle`
        raises.
        """
        written, self._written = self._calls, None
        if not written:
            return
        self._session.observe(self._directory.standing_ids(vector))
        self._marks.begin(position)
        for call in written:
            if isinstance(call, _Version):
                self._deliver_version(call, stopping)
            else:
                self._deliver_events(call, stopping)

    def settle(self) -> None:
        """Take note of what has become durable. Raises what the first event that failed has ended with, or `Fenced`."""
        failed = self._session.failed or self._session.fenced
        if failed is not None:
            raise failed
        while self._given and self._given[0].outcome == "durable":
            self._given.popleft()
            self.durable += 1

    def close(self) -> None:
        """End the session. What is not answered is given up: another session of the name is told what stands."""
        try:
            self._session.close(0.0)
        except OutcomeUnknown:
            return

    # --- inside -----------------------------------------------------------------------------------------------------------

    @property
    def _calls(self) -> list[list[Draft] | _Version]:
        if self._written is None:
            raise InvalidEvent("out is written to inside of step only", topic=self.topic)
        return self._written

    def _write(self, drafts: list[Draft]) -> None:
        for draft in drafts:
            draft.keep()
        self._calls.append(drafts)

    def _deliver_events(self, drafts: Sequence[Draft], stopping: Callable[[], bool]) -> None:
        left: list[Draft] = []
        for draft in drafts:
            draft.source = self._marks.take(draft.partition)
            if draft.source is not None:
                left.append(draft)
        if left:
            partitions = tuple(dict.fromkeys(draft.partition for draft in left))

            def publish() -> Receipt:
                call = Call(partitions, self._topic.persistence, whole=True)
                return self._session.publish(call, left, PATIENCE_S if len(left) == 1 else GOES_ON_S)

            self._send(publish, stopping)

    def _deliver_version(self, version: _Version, stopping: Callable[[], bool]) -> None:
        """All of it, or nothing: its parts name chunks of their own session, so what was staged by one that is gone is no use."""
        weights, marks = (self._topic.id, self._topic.partitions), self._marks
        if marks.is_past(weights):
            return
        if marks.holds_next(weights) and marks.pass_run(weights, self._count(version)):
            return
        # A try that found no room at all is repeated: it must number its events as the one before.
        first: list[Mark] = []

        def publish() -> Receipt:
            at = 0

            def send(draft: Draft) -> int:
                nonlocal at
                if at == len(first):
                    first.append(marks.number(weights))
                draft.source = first[at]
                at += 1
                return self._session.add(call, draft, PATIENCE_S if at == 1 else GOES_ON_S)

            call = Call((weights,), self._topic.persistence, whole=True, version=version.version)
            self._session.begin(call)
            with self._session.streaming(call):
                call.schema = self._stage(version, send)
            return self._session.finish(call)

        self._send(publish, stopping)

    def _stage(self, version: _Version, send: Callable[[Draft], int]) -> tuple[Any, ...]:
        """Chunks, parts and the commit; returns all tensors."""
        weights = self._topic.id, self._topic.partitions
        sequences, specs = stage(weights, version.version, version.groups, send, lambda nbytes: None)
        parts = tuple(PartRef(self._session.name, self._session.incarnation, sequence) for sequence in sequences)
        send(commit_draft(weights, version.version, parts, specs, version.schema, version.rewind))
        return specs

    def _count(self, version: _Version) -> int:
        """How many events it is."""
        count = 0

        def counted(draft: Draft) -> int:
            nonlocal count
            count += 1
            return count

        self._stage(version, counted)
        return count

    def _send(self, publish: Callable[[], Receipt], stopping: Callable[[], bool]) -> None:
        while True:
            self.settle()
            try:
                self._given.append(publish())
            except BackpressureTimeout:
                # Nothing of it was sent.
                if stopping():
                    raise
            else:
                self.given += 1
                return


def _copied(tensor: Tensor) -> Tensor:
    data = np.frombuffer(bytes(row_major(tensor.name, tensor.value)), np.uint8)
    return Tensor(tensor.name, tensor.dtype, tensor.shape, data)
