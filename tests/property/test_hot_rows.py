"""Copies of rows against the log: whatever order answers, writes and losses come in, no copy is of before a write that has come."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from feeding.fakes import FakeBroker
from paramstream.consumers.lookups import hot
from paramstream.consumers.lookups.hot import HotTopics
from paramstream.events.kinds import Rows

KEYS = np.arange(3)
NUMBERS = np.zeros(len(KEYS), np.int64)
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["write", "come", "answer", "arrive", "lose"]),
        st.lists(st.integers(0, 2), min_size=1, max_size=2),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    min_size=20,
    max_size=60,
)


class World:
    """A partition's log, as much of it as has come to the client, and what replicas answer. A row's value is the position that wrote it."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        hot = HotTopics(1 << 20, self.broker.directory, self.broker.make_link).of(self.broker.topic, float("inf"))
        assert hot is not None
        self.hot = hot
        self.broker.beat()
        self.log = self.broker.state
        self.written: dict[int, list[int]] = {}
        """Position → keys, of what stands."""
        self.come = self.log.position
        self.flying: list[tuple[int, npt.NDArray[np.float64]]] = []
        """Answers on their way: (what they have seen, values)."""
        self.answer(0, 0)
        self.arrive(0)

    def write(self, keys: list[int]) -> None:
        self.log.write(Rows("t", len(keys), 1, "float64"), [np.array(keys).tobytes(), bytes(8 * len(keys))])
        self.written[self.log.position] = keys

    def come_on(self, count: int) -> None:
        """So many events come to the client."""
        for frame in self.log.after(self.come, count):
            self.broker.handler.event(frame)
            self.come += 1
        self.broker.handler.drained()

    def answer(self, behind: int, ahead: int) -> None:
        """A replica answers: it had applied all but the last `behind` events, and up to `ahead` more by the time it read."""
        seen = max(self.log.position - behind, self.log.position & ~0xFFFFFFF)
        at = min(seen + ahead, self.log.position)
        values = np.array([[float(self.last(key, at))] for key in KEYS.tolist()])
        self.flying.append((seen, values))

    def arrive(self, which: int) -> None:
        """One of the answers that are on their way, the oldest or a later one."""
        if self.flying:
            seen, values = self.flying.pop(which % len(self.flying))
            self.hot.keep("t", KEYS, NUMBERS, values, np.ones(len(KEYS), np.bool_), {0: seen})

    def last(self, key: int, at: int) -> int:
        """The position that wrote the row last, as of a position."""
        return max((position for position, keys in self.written.items() if position <= at and key in keys), default=0)

    def lose(self, count: int) -> None:
        """The broker goes, and with it its last events; another epoch is opened."""
        self.broker.disconnect()
        end = max(self.log.position - count, self.log.position & ~0xFFFFFFF)
        self.written = {position: keys for position, keys in self.written.items() if position <= end}
        self.log.open_epoch(end=end)
        self.broker.connect()
        self.come = self.log.position

    def check(self) -> None:
        read = self.hot.read("t", KEYS, NUMBERS, {})
        if read is None:
            return
        (values, _, known), seen = read
        assert seen == {0: self.come}, "there is no heartbeat that could be missed"
        for key in KEYS[known].tolist():
            position = int(values[key, 0])
            assert position >= self.last(key, self.come), "it is of before a write that has come"
            assert position == 0 or position in self.written, "it is of what was lost"


@settings(max_examples=40)
@given(ACTS)
def test_no_copy_is_of_before_a_write_that_has_come_nor_of_what_was_lost(
    acts: list[tuple[str, list[int], int, int]],
) -> None:
    with patch.object(hot, "STALE_S", math.inf):
        play(World(), acts)


def play(world: World, acts: list[tuple[str, list[int], int, int]]) -> None:
    for act, keys, some, more in acts:
        match act:
            case "write":
                world.write(keys)
            case "come":
                world.come_on(some)
            case "answer":
                world.answer(some, more)
            case "lose":
                world.lose(some)
            case "arrive":
                world.arrive(some)
            case _:
                raise AssertionError(act)
        world.check()
