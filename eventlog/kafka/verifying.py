"""Reads everything that a log in Kafka holds, and says what is whole, what is damaged, and where. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...consistency.vector import PartitionId
from ...errors import CorruptLog, UnknownTopic
from ..reading import ATTEMPTS
from ..verifying import Flaw, PartitionCheck
from .reading import KafkaReader


def verify_kafka(reader: KafkaReader) -> Iterator[PartitionCheck]:
    """Each partition of the log in turn, to the end that it shows then; one that is damaged is read up to there.

    Raises `ConnectFailed` where Kafka does not answer.
    """
    for partition in reader.partitions():
        with suppress(UnknownTopic):  # Deleted meanwhile.
            yield _check(reader, partition)


def _check(reader: KafkaReader, partition: PartitionId) -> PartitionCheck:
    # An owner that cuts what is being read looks like damage, once.
    found = _read(reader, partition)
    for _ in range(1, ATTEMPTS):
        if not found.flaws:
            break
        found = _read(reader, partition)
    return found


def _read(reader: KafkaReader, partition: PartitionId) -> PartitionCheck:
    records = nbytes = first = last = 0
    flaws: tuple[Flaw, ...] = ()
    try:
        read = reader.read(partition)
        first = last = read.start
        for record in read.records:
            records, last, nbytes = records + 1, record.position, nbytes + record.nbytes
    except CorruptLog as error:
        flaws = (Flaw(Path(reader.name_of(partition)), None, last or None, error.problem),)
    return PartitionCheck(partition, 1, records, nbytes, first, last, "", flaws)
