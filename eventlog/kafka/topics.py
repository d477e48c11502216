"""What Kafka topics of a log are called, and what is set for them.

Our own retention trims a log, base by base and never past what a lease needs; Kafka's would remove records that still count.
So a topic of ours never expires, is never compacted, and never lets a replica that lacks acknowledged records lead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...errors import InvalidEvent
from .records import MAX_BATCH_BYTES
from .settings import KafkaLog
from .wire import TopicSettings

MAX_NAME = 249
"""Of a Kafka topic's name."""

CHANGELOG = ".changelog"
"""Ends the name of the Kafka topic that holds the changelogs of a topic's state partitions."""

TOMBSTONES_S = 7 * 24 * 3600
"""How long compaction leaves a tombstone: a reader that takes longer may miss it, and a deleted item would come back."""

COMPACTION_LAG_S = 3600
"""A record replaces those before it only once it is so old: whoever reads a changelog up to the end that it had at the beginning finds
the older one, where the newer one came behind that end. No reader may take longer."""

MAX_MESSAGE_BYTES = 1_048_588
"""`max.message.bytes` of our topics: 1 MiB and what Kafka adds to a batch."""

SHOWN = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "min.insync.replicas",
    "message.timestamp.type",
    "unclean.leader.election.enable",
    "compression.type",
)
"""What `describe_topic` tells."""

_STRANGE = re.compile(r"[^A-Za-z0-9_-]+")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_ID = re.compile(r"\.([0-9a-f]{16})")


def kafka_name(prefix: str, name: str, topic: int) -> str:
    """PREFIX + the name as far as Kafka takes it + "." + the topic's id. The id alone decides; the name is for people."""
    room = MAX_NAME - len(prefix) - 17
    return f"{prefix}{_STRANGE.sub('-', name)[:room] or 'topic'}.{topic:016x}"


def changelog_name(prefix: str, name: str, topic: int) -> str:
    """As `kafka_name`, of the topic's changelogs."""
    room = MAX_NAME - len(prefix) - len(CHANGELOG) - 17
    return kafka_name(prefix, name[:room], topic) + CHANGELOG


def topic_of(prefix: str, kafka_topic: str) -> int | None:
    """The id in the name of a Kafka topic of this log; None where it is none."""
    if not kafka_topic.startswith(prefix):
        return None
    match = _ID.fullmatch(kafka_topic, max(len(prefix), len(kafka_topic) - 17))
    return None if match is None else int(match[1], 16)


def new_topic_settings(settings: KafkaLog) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
        "min.insync.replicas": str(settings.min_insync_replicas),
        # Kafka's own clock, which no client's can be too far ahead of. What we go by is the stamp in each frame.
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
        "compression.type": "producer",
    }


def new_changelog_settings(settings: KafkaLog) -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(COMPACTION_LAG_S * 1000),
        "delete.retention.ms": str(TOMBSTONES_S * 1000),
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
        "min.cleanable.dirty.ratio": "0.1",
        "min.insync.replicas": str(settings.min_insync_replicas),
        "segment.bytes": str(64 * 1024 * 1024),
        "unclean.leader.election.enable": "false",
        "compression.type": "producer",
    }


def check_settings(name: str, topic: TopicSettings) -> None:
    """Raises `InvalidEvent` where a setting of the existing topic `name` would lose records or refuse ours."""
    for setting, value, wanted, harm in _harmful(topic):
        raise InvalidEvent(
            f"the Kafka topic {name} has {setting}={value}: {harm}",
            item=setting,
            remedy=f"Set {setting}={wanted} for the topic (kafka-configs --alter --entity-type topics)",
        )


def _harmful(topic: TopicSettings) -> list[tuple[str, str, str, str]]:
    """(setting, value, what it should be, why) of those that cannot be lived with."""
    values, found = topic.settings, list[tuple[str, str, str, str]]()

    def judge(setting: str, is_bad: bool, wanted: str, harm: str) -> None:
        if is_bad:
            found.append((setting, values.get(setting, ""), wanted, harm))

    judge("cleanup.policy", "compact" in values.get("cleanup.policy", ""), "delete", "compaction removes events")
    judge("retention.ms", values.get("retention.ms", "-1") != "-1", "-1", "Kafka removes events by age")
    judge("retention.bytes", values.get("retention.bytes", "-1") != "-1", "-1", "Kafka removes events by size")
    limit = _number(values, "max.message.bytes", MAX_MESSAGE_BYTES)
    too_small = limit < MAX_BATCH_BYTES + 40_000
    judge("max.message.bytes", too_small, str(MAX_MESSAGE_BYTES), "it takes no event of the greatest size")
    unclean = values.get("unclean.leader.election.enable", "false") == "true"
    judge("unclean.leader.election.enable", unclean, "false", "acknowledged events may vanish")
    insync = _number(values, "min.insync.replicas", 1)
    judge("min.insync.replicas", insync > topic.replication, str(topic.replication), "nothing is ever acknowledged")
    return found


def _number(values: Mapping[str, str], setting: str, default: int) -> int:
    text = values.get(setting, "")
    return int(text) if _NUMBER.fullmatch(text) else default


def shown_settings(name: str, topic: TopicSettings) -> dict[str, str]:
    """What a person who looks at the log is told of its Kafka topic."""
    facts = {"name": name, "partitions": str(topic.partitions), "replication": str(topic.replication)}
    return facts | {setting: topic.settings[setting] for setting in SHOWN if setting in topic.settings}
