"""A replica's rollback: one version is served whatever is committed, until it follows again."""

from __future__ import annotations

from contextlib import suppress

from ..errors import CorruptLog, EventLost, LogTruncated, UnknownTopic, VersionNotHeld
from ..transport.calls import DescribePartitions, ListVersions, PartitionRecord, VersionRecord
from .applying import TopicState
from .live_state import LiveState
from .refetch import refetch
from .scope import time_left
from .snapshots.choosing import snapshots_in
from .versions import Sealed


class Pinning:
    """Pins versions of a replica's topics, kept ones at once, others from the log. Any thread."""

    def __init__(self, live: LiveState) -> None:
        """Versions that the log no longer has come from the replica's own snapshots, if it has a folder of them."""
        self._snapshots = live.options.snapshot_dir
        self._sink = live.sink
        self._core = live.core
        self._applier = live.applier
        self._store = live.store
        self._directory = live.directory
        self._make_link = live.make_link

    def pin(self, topic: TopicState, version: int, deadline: float) -> None:
        """Serve `version`; what is committed meanwhile is kept, and not served."""
        with self._sink.changed:
            if (kept := topic.find(version)) is not None and kept.dense.retain():
                self._show(topic, kept)
                return
        fetched = self._fetch(topic, version, deadline)
        try:
            with self._sink.changed:
                if self._applier.topics.get(topic.record.id) is not topic:
                    raise UnknownTopic("the topic was replaced meanwhile", topic=topic.record.name, version=version)
                if self._core.is_lost(topic.weight_partition, fetched.position):
                    raise EventLost("the version was lost", topic=topic.record.name, version=version)
                self._show(topic, fetched)
        except BaseException:
            fetched.dense.release()
            raise

    def mend(self, topic: TopicState, damaged: Sealed, deadline: float) -> None:
        """Fetch the bytes of a version that SSD does not give back once more; the caller holds it. Raises what keeps it from that."""
        fetched = self._fetch(topic, damaged.version, deadline)
        try:
            if fetched.digest != damaged.digest:
                raise VersionNotHeld(
                    "another version has that number by now", topic=topic.record.name, version=damaged.version
                )
            damaged.dense.refill(fetched.dense)
        finally:
            fetched.dense.release()

    def unpin(self, topic: TopicState) -> None:
        """Serve the newest version again, and each that comes."""
        with self._sink.changed:
            topic.unpin()
            self._sink.switched(topic.record.id)
            self._sink.changed.notify_all()

    def _show(self, topic: TopicState, sealed: Sealed) -> None:
        topic.pin(sealed)
        self._sink.switched(topic.record.id)
        self._sink.changed.notify_all()

    def _fetch(self, topic: TopicState, version: int, deadline: float) -> Sealed:
        try:
            return self._from_log(topic, version, deadline)
        except (VersionNotHeld, LogTruncated):
            found = self._from_snapshots(topic, version, deadline)
            if found is None:
                raise
            return found

    def _from_log(self, topic: TopicState, version: int, deadline: float) -> Sealed:
        record, partition = topic.record, topic.weight_partition
        call = ListVersions(record.id)
        known: list[VersionRecord] = self._directory.request(call, list[VersionRecord], time_left(deadline))
        standing = {each.version: each for each in known if not each.superseded}
        wanted = standing.get(version)
        if wanted is None:
            there = ", ".join(map(str, standing)) or "none"
            superseded = any(each.version == version for each in known)
            raise VersionNotHeld(
                f"neither this replica nor the log has that version; the log has: {there}",
                topic=record.name,
                version=version,
                remedy="A rewind superseded it: restore it by a vector that holds its commit" if superseded else "",
            )
        with self._sink.changed:
            self._check_come(topic, version, wanted.position)
            self._sink.fetching = {**self._sink.fetching, partition: wanted.position}
        try:
            return refetch(self._make_link, self._store, record, wanted, topic.newest, lambda: time_left(deadline))
        finally:
            with self._sink.changed:
                self._sink.fetching = {p: at for p, at in self._sink.fetching.items() if p != partition}

    def _from_snapshots(self, topic: TopicState, version: int, deadline: float) -> Sealed | None:
        """The version from one of the replica's own snapshots, if one has it whole and no rewind has superseded it."""
        record = topic.record
        if self._snapshots is None:
            return None
        described: list[PartitionRecord] = self._directory.request(
            DescribePartitions(record.id, (record.partitions,)), list[PartitionRecord], time_left(deadline)
        )
        rewinds = [each for at in described for each in at.rewinds]
        for snapshot in snapshots_in(self._snapshots, record.name, record.id):
            sealed = snapshot.manifest.weights.sealed
            if sealed is None or sealed.version != version:
                continue
            if any(sealed.position < at and number <= version for at, number in rewinds):
                return None
            with self._sink.changed:
                self._check_come(topic, version, sealed.position)
            with suppress(CorruptLog):
                return snapshot.sealed(self._store)
        return None

    def _check_come(self, topic: TopicState, version: int, commit: int) -> None:
        """Under the lock."""
        if commit > self._core.position(topic.weight_partition):
            raise VersionNotHeld(
                "the version has not come here yet", topic=topic.record.name, version=version, remedy="Use wait_version"
            )
