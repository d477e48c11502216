"""Definitions of tables stand in every state partition, or the error says which ones lack it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import paramstream as ps
from paramstream.events.tables import definition_of


def owned_of(broker: ps.Broker, topic: int) -> dict[int, Any]:
    """What the broker has of the topic's partitions, by number."""
    return {number: owned for (of, number), owned in vars(broker)["_partitions"].owned.items() if of == topic}


def test_a_table_that_some_partitions_lack_is_named_with_them_and_filled_in_by_the_next_call(
    broker: ps.Broker, client: ps.Client
) -> None:
    topic = client.create_topic("model", partitions=4)
    partitions = owned_of(broker, topic.id)
    for number in (1, 3):
        partitions[number].error = ps.StorageFull("its disk is full", partition=number)
    with pytest.raises(ps.StorageFull, match="state partitions 1, 3 lack the table") as lacking:
        client.create_table("model", "rows", dim=2)
    assert (lacking.value.topic, lacking.value.item, lacking.value.partition) == ("model", "rows", 1)
    assert [partitions[number].core.table("rows") is not None for number in range(4)] == [True, False, True, False]
    for number in (1, 3):
        partitions[number].error = None
    # Another definition is refused all the same.
    with pytest.raises(ps.TopicExists):
        client.create_table("model", "rows", dim=3)
    client.create_table("model", "rows", dim=2)
    assert all(partitions[number].core.table("rows") is not None for number in range(4))
    with pytest.raises(ps.TopicExists):
        client.create_table("model", "rows", dim=2)
    # An alter is filled in the same way.
    partitions[2].error = ps.StorageFull("its disk is full", partition=2)
    with pytest.raises(ps.StorageFull, match="state partitions 2 lack the table"):
        client.alter_table("model", "rows", ps.SGD(0.5))
    partitions[2].error = None
    client.alter_table("model", "rows", ps.SGD(0.5))
    altered = definition_of("rows", 2, "float32", ps.SGD(0.5))
    assert all(partitions[number].core.table("rows") == altered for number in range(4))
    with pytest.raises(ps.UnknownTopic, match="no such table"):
        client.alter_table("model", "none", ps.SGD(0.5))
    keys = np.arange(64)
    client.publisher("model", producer="trainer").publish_rows(
        "rows", keys, np.ones((64, 2), np.float32)
    ).durable.result(10)
