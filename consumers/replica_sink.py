"""What a replica does in its link's thread: applies events, keeps time, notices that a topic was replaced, reports."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ..consistency.position import epoch_of, show
from ..consistency.vector import PartitionId, VersionVector
from ..errors import (
    CorruptLog,
    CorruptTier,
    EventLost,
    Fenced,
    InvalidEvent,
    LogTruncated,
    NotDurable,
    ParamstreamError,
    StorageFull,
    UnknownTopic,
)
from ..events.codec import encode_vector
from ..transport.calls import DescribePartitions, ListTopics, PartitionRecord, TopicRecord
from ..transport.directory import Directory
from ..transport.messages import Following, Heartbeat, Report, Welcome
from ..transport.wire import WireError
from .applying import Applier, TopicState
from .effects import Deliver, Durable, EpochBegan, Jump, Refetched, Step, Stopped, Undo
from .jumping import Jumps
from .links import ConsumerLink
from .recording import ReplicaRecorder
from .scope import check_durable
from .subscription_core import SubscriptionCore
from .version_info import VersionInfo
from .versions import Missing, Sealed

REPORT_S = 0.5
LOOK_AGAIN_S = 1.0
"""How often a replica asks for a topic of its name that is gone, and tries what its store had no room for."""


class Swapping(Protocol):
    """A module bound to a topic: `bound.Bound`."""

    @property
    def topic(self) -> str: ...
    @property
    def error(self) -> ParamstreamError | None: ...
    def refresh(self) -> None: ...


class ReplicaSink:
    """A `feed.Sink`. What other threads read is guarded by `changed`, or replaced as a whole."""

    link: ConsumerLink

    def __init__(
        self,
        name: str,
        core: SubscriptionCore,
        applier: Applier,
        directory: Directory,
        state_partitions: Callable[[TopicRecord], Sequence[int]],
        on_applied: Callable[[Step], None] | None = None,
        *,
        every_version: bool = False,
        recorder: ReplicaRecorder | None = None,
    ) -> None:
        """`every_version`: no version of the weights is passed over, however far the replica is behind."""
        self._name = name
        self._core = core
        self._applier = applier
        self._directory = directory
        self._state_partitions = state_partitions
        self._on_applied = on_applied
        self._recorder = recorder
        self.lock = threading.Lock()
        """Guards the core."""
        self.changed = threading.Condition(self.lock)
        """Notified when anything was applied or went wrong."""
        self.clock: dict[PartitionId, tuple[int, float, int]] = {}
        """Partition → (its time in ns, when that was heard, in which epoch); entries are replaced, never changed."""
        self.undone: dict[PartitionId, int] = {}
        """Partition → how often something of it was lost that had been applied."""
        self.kept: dict[PartitionId, int] = {}
        """State partition → the floor of the replica's own last snapshot, from where it would resume."""
        self.heard_at = time.monotonic()
        self.stopped: dict[PartitionId, ParamstreamError] = {}
        self.fenced: Fenced | None = None
        self.last_error = ""
        self.bounds: tuple[Swapping, ...] = ()
        """Refreshed after each change of a served version, under the lock: whoever has waited for a version finds bound
        modules at it, or due to take it."""
        self.listeners: tuple[Callable[[VersionInfo], None], ...] = ()
        """Told of each such change later, in the link's thread, without the lock."""
        self.serves = ""
        """Where look-ups are answered, for the reports."""
        self.wakers: tuple[Callable[[], None], ...] = ()
        """Called whenever `changed` is notified of what was applied; they neither block nor raise. Replaced as a whole."""
        self.fetching: dict[PartitionId, int] = {}
        """The commit of a version that is fetched once more, to be served next. Replaced as a whole."""
        self.jumps = Jumps(
            core, applier, self.changed, every_version=every_version, on_jump=self._goes_on, on_stuck=self._stands_still
        )
        self._switched: deque[VersionInfo] = deque()
        self._broker = ""
        self._dirty = False
        self._served: dict[str, Sealed | None] = {}
        self._report_at = 0.0
        self._look_at = 0.0
        self._looking = False
        self._gone: set[str] = set()
        self._held_at: dict[PartitionId, int] = {}
        """Weight partition → the last commit for which events were fetched once more."""
        self._full: set[PartitionId] = set()
        """Partitions that the store had no room for. There may be some again: readers let go of versions, entries end."""
        self._room_at = 0.0
        self._now = 0.0
        """At the last tick."""

    # --- effects ------------------------------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        self._dirty = True
        self._apply(step)
        self._tell_listeners()

    def _apply(self, step: Step) -> None:
        match step:
            case Deliver():
                self._deliver(step)
            case EpochBegan():
                with self.changed:
                    self._applier.began(step.partition, step.position, step.time)
                    self._take_time(step)
                    self._confirm(step)
            case Undo() if step.end < self._applier.settled(step.partition):
                self._stop(step.partition, _lost_for_good(step, self._applier.settled(step.partition)))
            case Undo():
                with self.changed:
                    self._applier.undo(step.partition, step.end)
                    self.undone[step.partition] = self.undone.get(step.partition, 0) + 1
                    self._confirm(step)
            case Jump():
                with self.changed:
                    self._applier.jump(step)
                    self._confirm(step)

    def _take_time(self, began: EpochBegan) -> None:
        """A new owner's time goes on from the last stamp: it may be behind what is reckoned from the old owner's last heartbeat."""
        known, epoch = self.clock.get(began.partition), epoch_of(began.position)
        if known is not None and known[2] < epoch:
            self.clock[began.partition] = (began.time, time.monotonic(), epoch)

    def told(self, effect: Durable | Refetched | Stopped) -> None:
        if effect.partition[0] not in self._applier.topics:
            return
        match effect:
            case Durable():
                self._applier.settle(effect.partition, effect.position)
                self._dirty = True
            case Refetched():
                with self.changed:
                    self._applier.refetched(effect.partition, effect.frame)
            case Stopped():
                self._stopped(effect)

    def _deliver(self, step: Deliver) -> None:
        try:
            prepared = self._applier.prepare(step, self._closed_vector)
        except Missing as missing:
            self._fetch_missing(step, missing)
            return
        except StorageFull as error:
            self._has_no_room(step, error)
            return
        except (CorruptLog, CorruptTier) as error:
            self._stop(step.partition, error)
            return
        try:
            with self.changed:
                self._applier.show(step, prepared)
                self._confirm(step)
        except StorageFull as error:
            self._has_no_room(step, error)

    def _has_no_room(self, step: Deliver, error: StorageFull) -> None:
        """What could still be lost needs room for what it replaces, and what came before it holds some for the same reason: until it is
        durable it waits. If there is none then, its partition stops until there is.
        """
        is_state = step.partition != self._applier.topics[step.partition[0]].weight_partition
        with self.changed:
            if is_state and self._core.wait_until_durable(step.partition):
                return
        self._stop(step.partition, error)

    def _confirm(self, step: Step) -> None:
        """Under the lock, with what the step changed: whoever sees the new position finds it recorded too."""
        self._core.confirm(step)
        self.switched(step.partition[0])
        if self._recorder is not None:
            self._recorder.applied(step)
        if self._on_applied is not None:
            self._on_applied(step)

    def _fetch_missing(self, step: Deliver, missing: Missing) -> None:
        partition, position = step.partition, step.frame.position
        was_fetched = self._held_at.get(partition) == position
        if was_fetched and self._core.jumping_to(partition) is None:
            # All behind the place where the partition was first followed has come: what lacks had left the log before that, and so
            # the version is none that is retained.
            self.last_error = f"LogTruncated: the log has the commit at {show(position)}, and not all of its version"
            with self.changed:
                self._applier.show(replace(step, passed=True), None)
                self._confirm(step)
            return
        if was_fetched:
            error = LogTruncated(
                "a commit names chunks or parts that the log does not have any more",
                position=position,
                remedy="Begin with the latest version, or give the log a higher log_limit",
            )
            self._stop(partition, error)
            return
        self._held_at[partition] = position
        with self.changed:
            self._core.hold(partition, missing.after)

    def _stop(self, partition: PartitionId, error: ParamstreamError) -> None:
        with self.changed:
            self._core.stop(partition, error)

    def _stopped(self, effect: Stopped) -> None:
        error, partition = effect.error, effect.partition
        # What lacked may be in the log, or find its room, when the partition goes on.
        self._held_at.pop(partition, None)
        name = self._directory.name_of(partition[0])
        error.topic = error.topic or name
        error.partition = partition[1] if error.partition is None else error.partition
        jumps_on = self.jumps.stopped(partition, error)
        with self.changed:
            self.last_error = f"{error.code}: {error}"
            if isinstance(error, UnknownTopic) or jumps_on:
                # The name may stand for a new topic, or soon will; or a newer version is on its way. What is served stays, and
                # is called stale: nobody who waits has to be told of what mends itself.
                self._applier.topics[partition[0]].stale = True
            else:
                self.stopped = {**self.stopped, partition: error}
            if isinstance(error, Fenced):
                self.fenced = error
            self.changed.notify_all()
        if isinstance(error, UnknownTopic) and name is not None:
            self._gone.add(name)
        if isinstance(error, StorageFull):
            self._full.add(partition)
            self._room_at = self._now + LOOK_AGAIN_S

    def _follow_stopped_again(self) -> None:
        """Another broker is there: what was wrong with the log of the one before may be mended. If not, it says so again."""
        with self.changed:
            for partition in [p for p, error in self.stopped.items() if isinstance(error, CorruptLog)]:
                self._goes_on(partition)
                self._core.resume(partition)

    def _goes_on(self, partition: PartitionId) -> None:
        """Under the lock: a jump leads on from where the partition stood; its lease is wanted soon."""
        self.stopped = {p: error for p, error in self.stopped.items() if p != partition}
        self._report_at = 0.0

    def _stands_still(self, partition: PartitionId, error: ParamstreamError) -> None:
        """Under the lock: nothing newer leads on from where the partition stopped, as far as is known."""
        self.stopped = {**self.stopped, partition: error}
        self.changed.notify_all()

    def _closed_vector(self) -> VersionVector[int]:
        with self.changed:
            return self._core.vector()

    def switched(self, topic_id: int) -> None:
        """Under the lock: what is served of the topic may have changed."""
        topic = self._applier.topics.get(topic_id)
        if topic is None:
            return
        name, served = topic.record.name, topic.served
        if served is None or served is self._served.get(name):
            return
        self._served[name] = served
        self._report_at = 0.0
        for bound in self.bounds:
            if bound.topic == name:
                bound.refresh()
        if self.listeners:
            durable = served.position <= self._core.heads(topic.weight_partition)[1]
            self._switched.append(VersionInfo.of_sealed(served, durable and topic.record.persistence != "none"))

    def _tell_listeners(self) -> None:
        while self._switched:
            info = self._switched.popleft()
            for listener in self.listeners:
                try:
                    listener(info)
                except Exception as error:  # noqa: BLE001 - a user's function: the replica goes on
                    self.last_error = f"on_switch of version {info.version}: {type(error).__name__}: {error}"

    def failure(self, topic: TopicState) -> ParamstreamError | None:
        """What keeps the topic's weights, or a module bound to them, from the newest version."""
        error = self.fenced or self.stopped.get(topic.weight_partition)
        bounds = (bound.error for bound in self.bounds if bound.topic == topic.record.name)
        return error or next((failed for failed in bounds if failed is not None), None)

    @property
    def error_text(self) -> str:
        """The error that stands, or the last one that there was."""
        failed = next((bound.error for bound in self.bounds if bound.error is not None), None)
        if failed is not None:
            return f"{failed.code}: {failed}"
        return self.last_error or next((tier.error for tier in self._applier.tiers() if tier.error), "")

    # --- the connection -------------------------------------------------------------------------------------------------------

    def connected(self, welcome: Welcome) -> None:
        if self._broker not in ("", welcome.broker):
            self._look_for_topics()
            self._follow_stopped_again()
        self._broker = welcome.broker

    def lost(self, error: ParamstreamError) -> None:
        self.jumps.lost()
        self.last_error = f"{error.code}: {error}"
        self._looking = False
        self._dirty = True

    def heard(self, message: Heartbeat | Following) -> None:
        now = time.monotonic()
        self.heard_at = now
        for heads in message.heads if isinstance(message, Heartbeat) else (message,):
            self.clock[heads.topic, heads.partition] = (heads.time, now, epoch_of(heads.accepted))

    def drained(self) -> None:
        if self._dirty:
            self._dirty = False
            with self.changed:
                self.changed.notify_all()
            for wake in self.wakers:
                wake()

    def tick(self, now: float) -> None:
        self._now = now
        self._tell_listeners()
        self.jumps.tick(now)
        self._applier.free_idle(now)
        self._applier.move_idle()
        if now >= self._report_at and self.link.connected:
            self._report_at = now + REPORT_S
            self.link.send(self.report())
        if self._full and now >= self._room_at and self.link.connected:
            self._try_full_again()
        if self._gone and now >= self._look_at and self.link.connected:
            self._look_at = now + LOOK_AGAIN_S
            self._look_for_topics()

    def _try_full_again(self) -> None:
        with self.changed:
            full, self._full = self._full.intersection(self._core.partitions()), set()
            self.stopped = {p: error for p, error in self.stopped.items() if p not in full}
            for partition in full:
                self._core.resume(partition)

    def topics(self) -> list[TopicRecord]:
        """The topics followed, in any thread."""
        return [topic.record for topic in list(self._applier.topics.values())]

    # --- topics that were replaced --------------------------------------------------------------------------------------------

    def _look_for_topics(self) -> None:
        if not self._looking:
            self._looking = True
            self.link.request_async(ListTopics(), list[TopicRecord], self._found_topics)

    def _found_topics(self, records: list[TopicRecord] | None, error: ParamstreamError | None) -> None:
        self._looking = False
        if records is None:
            return
        by_name = {record.name: record for record in records}
        for topic in list(self._applier.topics.values()):
            record = by_name.get(topic.record.name)
            if record is None:
                self._gone.add(topic.record.name)
                topic.stale = True
            elif record.id != topic.record.id:
                self._describe(topic.record.id, record)
            elif record.name in self._gone:
                self._gone.discard(record.name)
                topic.stale = False
                with self.changed:
                    for partition in [p for p in self._core.partitions() if p[0] == record.id]:
                        if partition not in self.stopped:
                            self._core.resume(partition)

    def _describe(self, old: int, record: TopicRecord) -> None:
        def done(partitions: list[PartitionRecord] | None, error: ParamstreamError | None) -> None:
            if partitions is not None and old in self._applier.topics:
                self._replace(old, record, {p.partition: p for p in partitions})

        self.link.request_async(DescribePartitions(record.id), list[PartitionRecord], done)

    def _replace(self, old: int, record: TopicRecord, partitions: Mapping[int, PartitionRecord]) -> None:
        self._directory.learn(record)
        try:
            if self._core.durable_only:
                check_durable(record)
            numbers = self._state_partitions(record)
        except (NotDurable, InvalidEvent) as error:
            with self.changed:
                gone = {partition: error for partition in self._core.partitions() if partition[0] == old}
                self.stopped = {**self.stopped, **gone}
                self.changed.notify_all()
            return
        with self.changed:
            for partition in [p for p in self._core.partitions() if p[0] == old]:
                self._core.unfollow(partition)
            self._applier.replace(old, record, numbers)
            for number in (*numbers, record.partitions):
                at = partitions[number]
                self._core.follow((record.id, number), at.start)
            self.jumps.begin(partitions[record.partitions])
            if self._recorder is not None:
                self._recorder.begins_anew()
            self.stopped = {p: error for p, error in self.stopped.items() if p[0] != old}
            self._gone.discard(record.name)
            self.changed.notify_all()

    # --- reports --------------------------------------------------------------------------------------------------------------

    def serves_at(self, endpoint: str, *wakers: Callable[[], None]) -> None:
        """Said in the next report, which is due at once; each of `wakers` is called after what is applied. Any thread."""
        self.wakers = wakers
        self.serves = endpoint
        self._report_at = 0.0

    def report(self) -> Report:
        with self.changed:
            positions = self._core.positions()
            durable = {p: self._core.heads(p)[1] for p in positions}
            lag = self._core.lag_events()
            fetching = {**self.fetching, **self.jumps.targets()}
        topics = list(self._applier.topics.values())
        served = [(t, t.pinned if t.pinned is not None and not t.pin_stale else t.versions.served) for t in topics]
        return Report(
            name=self._name,
            topics=tuple(topic.record.id for topic in topics),
            served=tuple((t.record.id, s.version, s.position, s.digest) for t, s in served if s is not None),
            applied=encode_vector(positions),
            lag_events=lag,
            needs=tuple(
                (*partition, self._needed(partition, applied, durable[partition]))
                for partition, applied in positions.items()
                if self.jumps.every_version or partition != self._applier.topics[partition[0]].weight_partition
            ),
            error=self.error_text,
            tiers=tuple((tier.tier, tier.limit, tier.held) for tier in self._applier.tiers()),
            failed=tuple((t.record.id, WireError.of(e)) for t in topics if (e := self.failure(t)) is not None),
            pinned=tuple(topic.record.id for topic in topics if topic.pinned is not None),
            fetching=tuple((partition[0], commit) for partition, commit in fetching.items()),
            serves=self.serves,
        )

    def _needed(self, partition: PartitionId, applied: int, durable: int) -> int:
        """What lies after this position is still needed: of state what is not applied for good, of weights the version served
        and what is staged.
        """
        topic = self._applier.topics[partition[0]]
        if partition != topic.weight_partition:
            return min(applied, durable, self.kept.get(partition, applied))
        served, staged = topic.versions.served, topic.versions.staging.oldest_open()
        needed = [applied]
        if served is not None:
            needed.append(served.first - 1)
        if staged is not None:
            needed.append(staged - 1)
        return min(needed)


def _lost_for_good(step: Undo, settled: int) -> EventLost:
    """The log has lost what was durable: it is an older copy, or was cut at its end. Nothing can take that back here."""
    return EventLost(
        f"the log now ends an epoch at {show(step.end)}, and had everything up to {show(settled)} for good",
        position=step.end,
        remedy="What was applied since is in no log any more; make another replica to follow this log",
    )
