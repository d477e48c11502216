"""When a replica jumps: weights that are behind a newer version go on with that one, and pass what lies between.

Only where events are fetched anyway: a consumer that is sent them is at most a ring's length behind. One jump runs to its
end before the next one begins, so that a replica which is always too slow still shows a version now and then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..consistency.vector import PartitionId
from ..errors import LogTruncated, ParamstreamError
from ..events.codec import decode_vector
from ..transport.calls import DescribePartitions, PartitionRecord
from .applying import Applier
from .links import ConsumerLink
from .subscription_core import SubscriptionCore

LOOK_S = 0.5
"""How often a replica that is behind asks for the newest version."""


class Jumps:
    """The jumps of one replica's weight partitions. All but `targets` in the link's thread, or before it starts."""

    link: ConsumerLink

    def __init__(
        self,
        core: SubscriptionCore,
        applier: Applier,
        changed: threading.Condition,
        *,
        every_version: bool,
        on_jump: Callable[[PartitionId], None],
        on_stuck: Callable[[PartitionId, ParamstreamError], None],
    ) -> None:
        """Told under the lock of `changed`: `on_jump` of each partition that goes on by a jump, `on_stuck` of one that stopped
        where the log has nothing newer to go on with.
        """
        self._core = core
        self._applier = applier
        self._changed = changed
        self._on_jump = on_jump
        self._on_stuck = on_stuck
        self._truncated: dict[PartitionId, LogTruncated] = {}
        self._asked: set[int] = set()
        """Topics whose answer is on its way."""
        self._look_at = 0.0
        self.every_version = every_version
        """`catch_up="all"`: nothing is passed, and what is gone from the log stops the partition."""
        self.while_behind = False
        """Set once the start state is served: until then only what is gone from the log is jumped over."""

    def begin(self, at: PartitionRecord) -> None:
        """Under the lock: the partition goes on with the newest durable version, if there is one to pass anything for."""
        partition = at.topic, at.partition
        self._applier.topics[at.topic].versions.learn_rewinds(at.rewinds)
        if at.latest_start > self._core.received(partition) or at.latest > self._core.position(partition):
            self._truncated.pop(partition, None)
            target = max(at.latest, at.latest_start)
            self._core.jump(partition, at.latest_start, target, decode_vector(at.context), at.ends)

    def stopped(self, partition: PartitionId, error: ParamstreamError) -> bool:
        """Nothing more of the partition is applied. True where a jump leads on from there by itself."""
        topic = self._applier.topics[partition[0]]
        if not isinstance(error, LogTruncated) or partition != topic.weight_partition or self.every_version:
            return False
        self._truncated[partition] = error
        self._look_at = 0.0
        return True

    def lost(self) -> None:
        """The connection is gone, and with it all answers."""
        self._asked.clear()

    def tick(self, now: float) -> None:
        if self.every_version or now < self._look_at or not self.link.connected:
            return
        behind = {
            topic.record.id for topic in self._applier.topics.values() if self._would_jump(topic.weight_partition)
        }
        for topic_id in behind - self._asked:
            self._look_at = now + LOOK_S
            self._look(topic_id)

    def targets(self) -> dict[PartitionId, int]:
        """Under the lock: where jumps are on their way to."""
        weights = [topic.weight_partition for topic in self._applier.topics.values()]
        return {p: target for p in weights if (target := self._core.jumping_to(p)) is not None}

    def _would_jump(self, partition: PartitionId) -> bool:
        if partition in self._truncated:
            return True
        return self.while_behind and self._core.is_behind(partition) and self._core.jumping_to(partition) is None

    def _look(self, topic_id: int) -> None:
        def done(found: list[PartitionRecord] | None, error: ParamstreamError | None) -> None:
            self._asked.discard(topic_id)
            topic = self._applier.topics.get(topic_id)
            at = next((p for p in found or () if topic and (p.topic, p.partition) == topic.weight_partition), None)
            if at is None:
                return
            partition = at.topic, at.partition
            with self._changed:
                # What came meanwhile may have closed the gap.
                if self._would_jump(partition) and at.latest_start > self._core.received(partition):
                    self.begin(at)
                    self._on_jump(partition)
                elif partition in self._truncated:
                    self._on_stuck(partition, self._truncated[partition])

        topic = self._applier.topics.get(topic_id)
        if topic is not None:
            self._asked.add(topic_id)
            asked = DescribePartitions(topic_id, (topic.record.partitions,))
            self.link.request_async(asked, list[PartitionRecord], done)
