"""Reading a Kafka partition to an end that is known, while more is written behind it."""

from __future__ import annotations

import asyncio
from typing import cast

from paramstream.eventlog.kafka.records import Mark, Record
from paramstream.eventlog.kafka.scan import Place, Scan
from paramstream.eventlog.kafka.wire import Page, Wire
from records.frames import PARTITION, Owner

MARK = Mark(0, 1, -1, 0).encode()


class Growing:
    """Kafka's side of one partition: a fetch brings all there is."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def append(self, frame: bytearray) -> None:
        self.records.append(Record(len(self.records), MARK, bytes(frame)))

    async def fetch(self, topic: str, partition: int, offset: int, max_bytes: int) -> Page:
        return Page(self.records[offset:], len(self.records))


def test_what_was_written_behind_the_end_is_read_by_the_next_scan() -> None:
    kafka, owner = Growing(), Owner()
    place = Place(cast("Wire", kafka), "topic", PARTITION)
    given = [*owner.opening(), owner.put(), owner.put(), owner.put()]
    for frame in given[:4]:
        kafka.append(frame)
    first = Scan(place, 0, 4)
    for frame in given[4:]:
        kafka.append(frame)
    found = asyncio.run(first.page())
    assert (first.offset, first.is_done) == (4, True)
    found += asyncio.run(Scan(place, first.offset, len(kafka.records)).page())
    assert [bytes(whole.frame) for whole in found] == [bytes(frame) for frame in given]
