"""Being the owner of a partition in Kafka."""

from __future__ import annotations

import time

import pytest

from paramstream.errors import ParamstreamError
from paramstream.eventlog.kafka.log import KafkaEventLog
from paramstream.eventlog.kafka.partition import KafkaPartition
from paramstream.eventlog.log import PartitionLog
from records.frames import PARTITION, Owner, append_all, as_pairs

SYNC_S = 30.0


def opened(log: KafkaEventLog, owner: Owner) -> KafkaPartition:
    """The partition, its topic made, claimed and with an epoch begun."""
    log.create_topic(PARTITION[0], "weights", 1)
    partition = log.open(PARTITION)
    take_over(partition, owner)
    return partition


def take_over(partition: PartitionLog, owner: Owner) -> list[tuple[int, bytes]]:
    """Claims and begins an epoch. Returns what counts behind the base."""
    recovered = partition.recover()
    found = as_pairs(recovered.records)
    owner.epoch = recovered.last_claim
    found += as_pairs(partition.claim(owner.claim()))
    if found:
        owner.at = found[-1][0]
    elif recovered.base is not None:
        owner.at = recovered.base.position
    append_all(partition, [owner.open_epoch(), owner.base()])
    return found


def sync_all(partition: PartitionLog, owner: Owner) -> None:
    deadline = time.monotonic() + SYNC_S
    while partition.sync() < owner.at:
        assert time.monotonic() < deadline, "it does not become durable"


def sync_fails(partition: PartitionLog) -> ParamstreamError:
    """What `sync` raises, soon."""
    deadline = time.monotonic() + SYNC_S
    with pytest.raises(ParamstreamError) as caught:
        while time.monotonic() < deadline:
            partition.sync()
    return caught.value


def topic_name(log: KafkaEventLog) -> str:
    """What Kafka calls the partition's topic."""
    return log.describe_topic(PARTITION[0])["name"]
