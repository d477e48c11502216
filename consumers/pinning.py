"""A replica's rollback: one version is served whatever is committed, until it follows again."""

from __future__ import annotations

from ..errors import EventLost, UnknownTopic, VersionNotHeld
from ..tiers.store import TieredStore
from ..transport.calls import ListVersions, VersionRecord
from ..transport.directory import Directory
from .applying import Applier, TopicState
from .links import MakeLink
from .refetch import refetch
from .replica_sink import ReplicaSink
from .scope import time_left
from .subscription_core import SubscriptionCore
from .versions import Sealed


class Pinning:
    """Pins versions of a replica's topics, kept ones at once, others from the log. Any thread."""

    def __init__(
        self,
        sink: ReplicaSink,
        core: SubscriptionCore,
        applier: Applier,
        store: TieredStore,
        directory: Directory,
        make_link: MakeLink,
    ) -> None:
        self._sink = sink
        self._core = core
        self._applier = applier
        self._store = store
        self._directory = directory
        self._make_link = make_link

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
        record, partition = topic.record, topic.weight_partition
        call = ListVersions(record.id)
        known: list[VersionRecord] = self._directory.request(call, list[VersionRecord], time_left(deadline))
        standing = {each.version: each for each in known if not each.superseded}
        wanted = standing.get(version)
        if wanted is None:
            there = ", ".join(map(str, standing)) or "none"
            raise VersionNotHeld(
                f"neither this replica nor the log has that version; the log has: {there}",
                topic=record.name,
                version=version,
            )
        with self._sink.changed:
            if wanted.position > self._core.position(partition):
                raise VersionNotHeld(
                    "the version has not come here yet", topic=record.name, version=version, remedy="Use wait_version"
                )
            self._sink.fetching = {**self._sink.fetching, partition: wanted.position}
        try:
            return refetch(self._make_link, self._store, record, wanted, topic.newest, lambda: time_left(deadline))
        finally:
            with self._sink.changed:
                self._sink.fetching = {p: at for p, at in self._sink.fetching.items() if p != partition}
