"""What a restore begins with instead of a log's beginning: the state that the changelogs of a topic hold."""

from __future__ import annotations

from collections.abc import Sequence

from ...consistency.vector import EMPTY
from ...errors import CorruptLog
from ...eventlog.changelog import Changelogs
from ...tiers.entries import Entry
from ...transport.calls import TopicRecord
from ..snapshots.seeding import Seed, StateSeed
from .records import Marker, read_record


def seed_of(changelogs: Changelogs, record: TopicRecord, numbers: Sequence[int]) -> Seed:
    """The state partitions `numbers`, as far as they have a changelog with a marker; the others begin where their log begins.

    Each changelog is read from its beginning to its end, since compaction leaves no shorter way. Raises `CorruptLog` naming
    the changelog whose records do not go together, and what reading raises.
    """
    seed = Seed(record.id, EMPTY)
    for number in numbers:
        found = _read(changelogs, record, number)
        if found is None:
            continue
        marked, entries = found
        seed.context = seed.context.merge(marked.vector)
        partition = record.id, number
        seed.state.append(StateSeed(partition, marked.floor, marked.ceiling, marked.skipped, entries.items))
    return seed


def _read(changelogs: Changelogs, record: TopicRecord, number: int) -> tuple[Marker, dict[bytes, Entry]] | None:
    """None where nothing was flushed yet."""
    place = f"of {record.name}/{number}"
    changelog = changelogs.open((record.id, number), record.name, record.partitions)
    marked: Marker | None = None
    entries = dict[bytes, Entry]()
    try:
        for stored in changelog.read():
            match read_record(stored, place):
                case Marker() as newer:
                    marked = newer
                case (key, None):
                    entries.pop(key, None)
                case (key, entry):
                    entries[key] = entry
    finally:
        changelog.close()
    if marked is None:
        if entries:
            raise CorruptLog(f"the changelog {place} has entries and no marker", item=place)
        return None
    _check(marked, entries, place)
    return marked, entries


def _check(marked: Marker, entries: dict[bytes, Entry], place: str) -> None:
    above = [key for key, entry in entries.items() if entry.position > marked.ceiling]
    if above:
        raise CorruptLog(
            f"the changelog {place} has {len(above)} entries above its marker, {above[0]!r} for one",
            item=place,
            position=marked.ceiling,
        )
