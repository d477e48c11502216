"""What an opening makes of what stands."""

from __future__ import annotations

import pytest

from paramstream.brokers import partition
from paramstream.brokers.effects import Append
from paramstream.brokers.opening import Opener
from paramstream.brokers.owned import Owned
from paramstream.brokers.partition import PartitionSettings
from paramstream.consistency.epochs import EpochEnds
from paramstream.consistency.position import offset_of
from paramstream.eventlog import counting
from paramstream.eventlog.memory import MemoryLog
from paramstream.events.codec import decode_event
from paramstream.events.kinds import Epoch, Note

STATE = (77, 0)


def write(owned: Owned, count: int) -> None:
    for _ in range(count):
        for effect in owned.core.write(Note(), (), 10**9):
            if isinstance(effect, Append):
                owned.append(effect)


def test_under_none_a_reader_finds_a_way_from_each_epoch_to_the_next_though_offsets_ran_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition, "MAX_OFFSET", 3)
    monkeypatch.setattr(counting, "MAX_OFFSET", 3)
    durable, clock = MemoryLog(), iter(range(1_900_000_000, 2_000_000_000))
    settings, seen = PartitionSettings("state", "none", 8, "cache"), list[int]()
    for count in (2, 8, 0, 1):
        opener = Opener(durable, MemoryLog(), "owner", lambda: float(next(clock)), lambda: 10**9)
        owned = opener.open(STATE, settings)
        before, seen = seen, list[int]()
        ends = EpochEnds(owned.core.ends)
        assert all(ends.is_lost(at) for at in before if offset_of(at))
        write(owned, count)
        for frame in map(decode_event, owned.log.read(0, 1 << 30).frames):
            if isinstance(frame.payload, Epoch):
                assert frame.payload.previous_end == (seen[-1] if seen else 0)
            seen.append(frame.position)
