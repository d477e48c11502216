"""A version put together once more from its log: whole and proved, or an error and no memory held."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from feeding.fakes import FakeBroker
from paramstream.consistency.vector import VersionVector
from paramstream.consumers.refetch import refetch
from paramstream.consumers.versions import Sealed
from paramstream.errors import CorruptLog, LogTruncated, StorageFull
from paramstream.events.codec import decode_event
from paramstream.events.kinds import Chunk, Commit
from paramstream.tiers.store import TieredStore
from paramstream.transport.calls import VersionRecord
from paramstream.transport.messages import Fetch, FetchFile

F32 = npt.NDArray[np.float32]


class Log(FakeBroker):
    """Answers each fetch at once."""

    def fetch(self, message: Fetch | FetchFile) -> None:
        super().fetch(message)
        self._answer_fetches()

    def record(self, version: int, frames: list[bytearray]) -> VersionRecord:
        first, commit = decode_event(frames[0]), decode_event(frames[-1])
        return VersionRecord(version, commit.position, commit.time, 1, 1, b"", True, first=first.position)


@pytest.fixture
def log() -> Log:
    log = Log()
    log.frames_per_fetch = 3
    return log


@pytest.fixture
def store() -> Iterator[TieredStore]:
    with TieredStore(dram="8MiB") as store:
        yield store
        assert store.usage().staging_bytes == 0


def again(log: Log, store: TieredStore, wanted: VersionRecord, newest: Sealed | None = None) -> Sealed:
    return refetch(log.make_link, store, log.topic, wanted, newest, lambda: 1.0)


def values(sealed: Sealed, name: str) -> F32:
    extent = sealed.dense.extents[name]
    return np.frombuffer(sealed.dense.shared(), np.float32, extent.nbytes // 4, extent.offset)


def tensors(value: float, count: int = 3, size: int = 50) -> dict[str, F32]:
    return {f"t{n}": np.full(size, value + n, np.float32) for n in range(count)}


def test_one_version_among_others_comes_back_whole(log: Log, store: TieredStore) -> None:
    log.weights.version(1, tensors(1.0), chunk_bytes=64)
    frames = log.weights.version(2, tensors(2.0), chunk_bytes=64)
    log.weights.version(3, tensors(3.0), chunk_bytes=64)
    sealed = again(log, store, log.record(2, frames))
    assert (sealed.version, set(sealed.specs)) == (2, {"t0", "t1", "t2"})
    assert all((values(sealed, f"t{n}") == 2.0 + n).all() for n in range(3))
    assert sealed.vector == VersionVector({log.weights.partition: sealed.position})
    sealed.dense.release()
    assert store.usage().dense_bytes == 0


def test_ties_that_a_version_left_out_are_those_of_the_same_schema_only(log: Log, store: TieredStore) -> None:
    first = log.weights.version(1, {"embed": np.zeros(4, np.float32)}, tied={"head": "embed"})
    second = log.weights.version(2, {"embed": np.ones(4, np.float32)})
    other = log.weights.version(3, {"embed": np.ones(8, np.float32)}, tied={"head": "embed"})
    newest = again(log, store, log.record(1, first))
    tied = again(log, store, log.record(2, second), newest)
    assert (values(tied, "head") == 1.0).all() and tied.specs["head"].tied_to == "embed"
    replaced = again(log, store, log.record(3, other))
    assert set(again(log, store, log.record(2, second), replaced).specs) == {"embed"}


def test_a_version_that_cannot_be_staged_whole_is_fetched_twice(log: Log) -> None:
    frames = log.weights.version(1, tensors(1.0, count=4, size=100_000), chunk_bytes=200_000)
    wanted = log.record(1, frames)
    with TieredStore(dram="2MiB") as store:
        sealed = again(log, store, wanted)
        assert all((values(sealed, f"t{n}") == 1.0 + n).all() for n in range(4))
        with pytest.raises(StorageFull):
            again(log, store, wanted)
        assert store.usage().staging_bytes == 0


def test_what_the_log_no_longer_has_is_said(log: Log, store: TieredStore) -> None:
    frames = log.weights.version(1, tensors(1.0), chunk_bytes=64)
    wanted = log.record(1, frames)
    for frame in frames:
        event = decode_event(frame)
        if isinstance(event.payload, Chunk):
            del log.weights.log[event.position]
            break
    with pytest.raises(LogTruncated, match="no longer has all of the version") as gone:
        again(log, store, wanted)
    assert (gone.value.topic, gone.value.version) == ("model", 1)
    del log.weights.log[wanted.position]
    with pytest.raises(LogTruncated):
        again(log, store, wanted)
    assert store.usage().dense_bytes == 0


def test_a_version_whose_bytes_are_not_its_digests_is_not_served(log: Log, store: TieredStore) -> None:
    good = log.weights.version(1, tensors(1.0))
    *_, commit = log.weights.version(2, tensors(2.0))
    payload = decode_event(good[-1]).payload
    assert isinstance(payload, Commit)
    wrong = log.weights.write(Commit(1, payload.parts, payload.digest[::-1], rewind=True))
    assert commit
    wanted = log.record(1, [good[0], wrong])
    with pytest.raises(CorruptLog):
        again(log, store, wanted)
    assert store.usage().dense_bytes == 0
