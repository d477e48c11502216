"""Chunks that are put in their place before the commit: the same values as ever, whatever comes in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeding.writer import Writer
from paramstream.consistency.vector import EMPTY
from paramstream.consumers.versions import Missing, Sealed, Versions
from paramstream.errors import CorruptLog
from paramstream.events.codec import decode_event
from paramstream.events.kinds import Chunk, Commit, Part
from paramstream.tiers.arena import Slot
from paramstream.tiers.store import TieredStore

F32 = npt.NDArray[np.float32]
PARTITION = (9, 1)
CHUNK_BYTES = 64


def tensors(value: float, count: int = 3, size: int = 50) -> dict[str, F32]:
    return {f"t{n}": np.full(size, value + n / 8, np.float32) for n in range(count)}


class Weights:
    """A weight partition's log, and the versions made from it."""

    def __init__(self, store: TieredStore, keep: int = 1) -> None:
        self.log = Writer(PARTITION)
        self.versions = Versions(store, keep)
        self.refetches = 0

    def publish(
        self, number: int, arrays: Mapping[str, F32], *, producer: str = "p", chunk_bytes: int = CHUNK_BYTES
    ) -> Sealed:
        self.take(self.log.version(number, arrays, chunk_bytes=chunk_bytes, producer=producer))
        served = self.versions.served
        assert served is not None
        return served

    def begin(self, number: int, arrays: Mapping[str, F32], chunks: int, *, producer: str = "p") -> list[bytearray]:
        """The first chunks of a version; the rest is returned and may come later."""
        frames = self.log.version(number, arrays, chunk_bytes=CHUNK_BYTES, producer=producer)
        self.take(frames[:chunks])
        return frames[chunks:]

    def take(self, frames: Sequence[bytearray]) -> None:
        for frame in frames:
            event = decode_event(frame)
            match event.payload:
                case Chunk():
                    self.versions.staging.stage_chunk(event)
                case Part():
                    self.versions.staging.stage_part(event)
                case Commit() as commit:
                    try:
                        assembly = self.versions.prepare(event)
                    except Missing as missing:
                        self.refetches += 1
                        for again in self.log.after(missing.after):
                            self.versions.refetched(decode_event(again))
                        assembly = self.versions.prepare(event)
                    self.versions.show(self.versions.finish(assembly, EMPTY), commit)
                case _:
                    pass


@pytest.fixture
def store() -> Iterator[TieredStore]:
    with TieredStore(dram="8MiB") as store:
        yield store


@pytest.fixture
def weights(store: TieredStore) -> Iterator[Weights]:
    weights = Weights(store)
    weights.publish(1, tensors(1.0))
    yield weights
    weights.versions.clear()
    usage = store.usage()
    assert (usage.staging_bytes, usage.dense_bytes) == (0, 0)


def holds(sealed: Sealed, arrays: Mapping[str, F32]) -> bool:
    mapping = sealed.dense.shared()
    extents = sealed.dense.extents
    found = {n: np.frombuffer(mapping, np.float32, e.nbytes // 4, e.offset) for n, e in extents.items()}
    return found.keys() == arrays.keys() and all((found[name] == arrays[name]).all() for name in arrays)


def test_chunks_of_a_version_like_the_one_served_are_not_held_as_received(weights: Weights, store: TieredStore) -> None:
    rest = weights.begin(2, tensors(2.0), chunks=5)
    assert store.usage().staging_bytes == 0
    weights.take(rest)
    assert weights.versions.served is not None and holds(weights.versions.served, tensors(2.0))


@pytest.mark.parametrize(
    "arrays", [tensors(2.0, count=4), tensors(2.0, count=2), tensors(2.0, size=51), {"other": np.ones(9, np.float32)}]
)
def test_a_version_of_other_tensors_is_put_together_from_what_came(weights: Weights, arrays: dict[str, F32]) -> None:
    assert holds(weights.publish(2, arrays), arrays)
    assert weights.refetches == 0


def test_what_a_writer_that_died_has_left_is_not_in_the_version_of_another(
    weights: Weights, store: TieredStore
) -> None:
    for chunks, version in ((1, 2), (6, 4), (12, 6)):
        weights.begin(version, tensors(-5.0), chunks, producer="died")
        assert holds(weights.publish(version, tensors(2.0), producer="q"), tensors(2.0))
        rest = weights.begin(version + 1, tensors(3.0), chunks=4)
        assert store.usage().staging_bytes == 0
        weights.take(rest)
    assert weights.refetches == 0


def test_a_version_that_nobody_commits_keeps_its_place_until_a_higher_one_is_committed(
    weights: Weights, store: TieredStore
) -> None:
    weights.begin(2, tensors(-5.0), chunks=4)
    assert holds(weights.publish(3, tensors(3.0)), tensors(3.0))
    rest = weights.begin(4, tensors(4.0), chunks=4)
    assert store.usage().staging_bytes == 0
    weights.take(rest)
    assert weights.versions.served is not None and holds(weights.versions.served, tensors(4.0))


def test_what_is_published_again_after_a_loss_is_the_version(weights: Weights, store: TieredStore) -> None:
    end = weights.log.position
    weights.begin(2, tensors(-5.0), chunks=6)
    weights.log.open_epoch(end=end)
    weights.versions.undo(end)
    rest = weights.begin(2, tensors(2.0), chunks=6)
    assert store.usage().staging_bytes == 0
    weights.take(rest)
    assert weights.versions.served is not None and holds(weights.versions.served, tensors(2.0))
    assert weights.refetches == 0


def test_a_lost_commit_gives_back_what_was_served_and_its_chunks_can_be_fetched_again(weights: Weights) -> None:
    *frames, commit = weights.log.version(2, tensors(2.0), chunk_bytes=CHUNK_BYTES)
    weights.take(frames)
    before_commit = decode_event(frames[-1]).position
    weights.take([commit])
    weights.versions.undo(before_commit)
    assert weights.versions.served is not None and holds(weights.versions.served, tensors(1.0))
    weights.take([commit])
    assert weights.refetches == 1
    assert holds(weights.versions.served, tensors(2.0))


def test_what_was_sealed_is_not_put_together_from_its_own_slot_once_more(weights: Weights) -> None:
    *frames, commit = weights.log.version(2, tensors(2.0), chunk_bytes=CHUNK_BYTES)
    weights.take(frames)
    event = decode_event(commit)
    sealed = weights.versions.finish(weights.versions.prepare(event), EMPTY)
    with pytest.raises(Missing):
        weights.versions.prepare(event)
    assert holds(sealed, tensors(2.0))
    sealed.dense.release()


def test_bytes_without_the_digest_of_their_part_are_no_version(weights: Weights) -> None:
    first, *rest = weights.log.version(2, tensors(2.0), chunk_bytes=CHUNK_BYTES)
    wrong = replace(decode_event(first), bulk=memoryview(b"w" * CHUNK_BYTES))
    weights.versions.staging.stage_chunk(wrong)
    with pytest.raises(CorruptLog, match="the bytes of tensor 't0' do not have the digest"):
        weights.take(rest)
    assert weights.versions.served is not None and holds(weights.versions.served, tensors(1.0))


def test_a_version_that_finds_no_room_before_its_commit_is_made_at_it(store: TieredStore) -> None:
    arrays = tensors(1.0, size=250_000)
    weights = Weights(store)
    weights.publish(1, arrays, chunk_bytes=1 << 18)
    *frames, commit = weights.log.version(2, tensors(2.0, size=250_000), chunk_bytes=1 << 18)
    others = store.usage().available_bytes - 1_000_000
    store.charge_staging(others)
    weights.take(frames)
    assert others < store.usage().staging_bytes <= others + 1_000_000
    store.refund_staging(others)
    weights.take([commit])
    assert weights.refetches == 1
    assert weights.versions.served is not None and holds(weights.versions.served, tensors(2.0, size=250_000))


layouts = st.sampled_from([(3, 50), (3, 51), (2, 50), (4, 50)])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from("pq"), layouts),
        st.tuples(st.just("die"), st.sampled_from("pqr"), layouts),
        st.tuples(st.just("lose"), st.sampled_from("pq"), layouts),
        st.tuples(st.just("drop"), st.just(""), layouts),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(steps=steps, chunks=st.integers(0, 14))
def test_whatever_comes_between_a_version_has_the_values_of_its_publish(
    steps: list[tuple[str, str, tuple[int, int]]], chunks: int
) -> None:
    with TieredStore(dram="8MiB") as store:
        weights = Weights(store, keep=2)
        number = 1
        for what, producer, (count, size) in steps:
            arrays = tensors(float(number), count, size)
            match what:
                case "publish":
                    assert holds(weights.publish(number, arrays, producer=producer), arrays)
                    number += 1
                case "die":
                    weights.begin(number, tensors(-1.0, count, size), chunks, producer=producer)
                case "lose":
                    end = weights.log.position
                    weights.begin(number, tensors(-2.0, count, size), chunks, producer=producer)
                    weights.log.open_epoch(end=end)
                    weights.versions.undo(end)
                case _:
                    weights.begin(number, tensors(-3.0, count, size), chunks)
                    weights.versions.staging.drop_bytes()
        weights.versions.clear()
        assert (store.usage().staging_bytes, store.usage().dense_bytes) == (0, 0)


class SlowStore(TieredStore):
    """Gives memory once it is told to."""

    def __init__(self, dram: str = "8MiB") -> None:
        super().__init__(dram)
        self.may_give = threading.Event()
        self.has_given = threading.Event()

    def allocate(self, nbytes: int) -> Slot:
        assert self.may_give.wait(10)
        try:
            return super().allocate(nbytes)
        finally:
            self.has_given.set()


def sizes(arrays: Mapping[str, F32]) -> dict[str, int]:
    return {name: array.nbytes for name, array in arrays.items()}


@pytest.mark.parametrize("at_once", [0, 1, 5, 100], ids=["at once", "after a chunk", "in between", "at the commit"])
def test_memory_that_comes_later_gives_the_same_version(at_once: int) -> None:
    arrays = tensors(1.0)
    with SlowStore() as store:
        weights = Weights(store)
        weights.versions.staging.prepare(sizes(arrays))
        frames = weights.log.version(1, arrays, chunk_bytes=CHUNK_BYTES)
        weights.take(frames[: min(at_once, len(frames) - 1)])
        store.may_give.set()
        if at_once < len(frames):
            assert store.has_given.wait(10)
            memory_has_come(weights)
        before = store.usage().staging_bytes
        weights.take(frames[min(at_once, len(frames) - 1) : -1])
        assert at_once or store.usage().staging_bytes == before == 0
        weights.take(frames[-1:])
        served = weights.versions.served
        assert served is not None and holds(served, arrays) and weights.refetches == 0
        slots = store.usage().dense_bytes
        assert slots == served.dense.nbytes
        weights.versions.clear()
        assert (store.usage().staging_bytes, store.usage().dense_bytes) == (0, 0)


def memory_has_come(weights: Weights) -> None:
    """The thread has ended, so that the next chunk finds the memory."""
    for thread in threading.enumerate():
        if thread.name == "paramstream-memory":
            thread.join(10)
    assert weights.versions.served is None


def test_what_was_prepared_for_and_does_not_come_is_given_back(store: TieredStore) -> None:
    weights = Weights(store)
    weights.versions.staging.prepare({"other": 64})
    assert holds(weights.publish(1, tensors(1.0)), tensors(1.0))
    weights.versions.staging.prepare(sizes(tensors(2.0)))
    assert holds(weights.publish(2, tensors(2.0)), tensors(2.0))
    weights.versions.staging.prepare(sizes(tensors(3.0)))
    weights.versions.clear()
    assert (store.usage().staging_bytes, store.usage().dense_bytes) == (0, 0)


def test_without_room_beforehand_a_version_is_put_together_at_its_commit() -> None:
    arrays = tensors(1.0, count=1)
    with TieredStore("64KiB") as store:
        weights = Weights(store)
        weights.versions.staging.prepare({"t0": 1 << 20})
        assert holds(weights.publish(1, arrays), arrays)
        weights.versions.clear()
        assert (store.usage().staging_bytes, store.usage().dense_bytes) == (0, 0)
