"""A client's look-ups: split by partition, gathered in order, asked of another replica where one fails, and never past their deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import zmq

from fakes.replica_reports import ReplicaReports
from fakes.served_source import TABLE, FakeSource, rows_of
from paramstream.consistency.vector import VersionVector
from paramstream.consumers.lookups import reads
from paramstream.consumers.lookups.lookups import Lookups
from paramstream.consumers.lookups.serving import Serving
from paramstream.errors import EventLost, InvalidEvent, ParamstreamError, ParamstreamTimeout, UnknownTopic
from paramstream.events.digest import partition_of
from paramstream.transport.lookups import FoundRows, decode_question, encode_frame
from paramstream.transport.sockets import router
from reference.waiting import eventually


class Stage:
    """Brokers' reports, replicas that serve, and a client's look-ups."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.reports = ReplicaReports()
        self.sources: dict[str, FakeSource] = {}
        self.servings: dict[str, Serving] = {}
        self.lookups = Lookups(self.reports, self.reports.directory)
        stack.callback(self.lookups.close, 5.0)

    def partitions(self, count: int) -> None:
        self.reports.topic = ReplicaReports(count).topic

    def serve(self, name: str, *numbers: int, at: str = "") -> FakeSource:
        source = self.sources[name] = FakeSource(numbers or (0,))
        serving = Serving(source, f"ipc://{self._folder}/{at or name}", name)
        self._stack.callback(serving.close)
        self.servings[name] = serving
        self.reports.tell(name, serving.endpoint, *numbers)
        return source

    def rows(self, keys: Any, at_least: Any = None, timeout: float = 10.0) -> tuple[Any, Any, VersionVector[str]]:
        return self.lookups.rows("model", TABLE, keys, at_least, "numpy", timeout)

    def get(self, *keys: bytes, timeout: float = 10.0) -> list[bytes | None]:
        return self.lookups.entries("model", keys, None, timeout)[0]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(reads, "PATIENCE_S", 0.3)
    with ExitStack() as stack:
        yield Stage(tmp_path, stack)


def check_rows(found: tuple[Any, Any, VersionVector[str]], keys: Any) -> None:
    asked = np.asarray(keys, np.int64)
    assert np.array_equal(found[0], rows_of(asked))
    assert np.array_equal(found[1], asked % 2 == 0)


# --- right answers ---------------------------------------------------------------------------------------------------------------


def test_keys_go_to_those_that_hold_them_and_come_back_in_their_order(stage: Stage) -> None:
    stage.partitions(8)
    sources = stage.serve("a", 0, 2, 4, 6), stage.serve("b", 1, 3, 5, 7)
    sources[0].positions[2], sources[1].positions[3] = 20, 30
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 30_000)
    found = stage.rows(keys)
    check_rows(found, keys)
    assert found[2]["model", 2] == 20 and found[2]["model", 3] == 30 and found[2]["model", 0] == 10
    assert all(source.reads for source in sources)


@pytest.mark.parametrize("count", [200_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_many_keys_are_asked_for_in_pieces(stage: Stage, count: int) -> None:
    source = stage.serve("a")
    keys = np.arange(count)[::-1].copy()
    check_rows(stage.rows(keys, timeout=60), keys)
    # A first question to learn what a row is like, and as many as are full.
    assert count * 17 >> 20 < source.reads < (count * 17 >> 20) + 10


def test_no_keys_have_no_rows_of_the_tables_shape_and_an_unknown_table_is_said_all_the_same(stage: Stage) -> None:
    stage.serve("a")
    for _ in range(2):
        values, found, _ = stage.rows([])
        assert (values.shape, values.dtype, found.shape) == ((0, 4), np.float32, (0,))
    with pytest.raises(UnknownTopic) as caught:
        stage.lookups.rows("model", "other", [], None, None, 5.0)
    assert (caught.value.topic, caught.value.item) == ("model", "other")


def test_values_of_entries_come_in_their_order_and_large_ones_in_several_answers(stage: Stage) -> None:
    stage.partitions(3)
    sources = {number: stage.serve(f"r{number}", number) for number in range(3)}
    values = {f"key-{number}".encode(): bytes([number]) * 300_000 for number in range(20)}
    for key, value in values.items():
        sources[partition_of(key, 3)].entries[key] = value
    assert stage.get(*values, b"none", b"key-3") == [*values.values(), None, values[b"key-3"]]
    assert stage.get() == []


def test_many_threads_look_up_at_once(stage: Stage) -> None:
    stage.partitions(4)
    stage.serve("a", 0, 1)
    stage.serve("b", 2, 3)
    with ThreadPoolExecutor(10) as pool:
        many = [np.arange(seed, seed + 500) for seed in range(50)]
        for keys, found in zip(many, pool.map(stage.rows, many), strict=True):
            check_rows(found, keys)


def test_look_ups_are_spread_over_those_that_hold_the_same(stage: Stage) -> None:
    sources = [stage.serve(name) for name in "abc"]
    for _ in range(30):
        stage.rows([1])
    assert all(source.reads >= 5 for source in sources)


@pytest.mark.parametrize("keys", [[1.5], np.zeros(3, np.int32), np.zeros((2, 2), np.int64), "keys", [2**63]])
def test_keys_that_are_none_are_refused_before_anything_is_asked(stage: Stage, keys: Any) -> None:
    with pytest.raises((InvalidEvent, OverflowError)):
        stage.rows(keys)
    assert stage.reports.asked == 0


def test_arrays_are_torchs_where_they_are_asked_for(stage: Stage) -> None:
    torch = pytest.importorskip("torch")
    stage.serve("a")
    values, found, _ = stage.lookups.rows("model", TABLE, torch.tensor([2, 3]), None, "torch", 5.0)
    assert torch.equal(values, torch.tensor(rows_of(np.array([2, 3]))))
    assert found.dtype == torch.bool and found.tolist() == [True, False]


# --- what must have been seen ------------------------------------------------------------------------------------------------------


def test_an_answer_has_seen_what_it_must_from_whichever_replica_has(stage: Stage) -> None:
    behind, ahead = stage.serve("behind"), stage.serve("ahead")
    ahead.positions[0] = 20
    for _ in range(4):
        assert stage.rows([1], VersionVector({("model", 0): 20}))[2]["model", 0] == 20
    assert not behind.reads


def test_a_replica_that_is_alone_is_waited_for(stage: Stage) -> None:
    source = stage.serve("a")
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(stage.rows, [1], VersionVector({("model", 0): 11}))
        eventually(lambda: stage.servings["a"].counters().aside)
        source.positions[0] = 11
        stage.servings["a"].wake()
        assert later.result(5)[2]["model", 0] == 11


def test_what_is_not_seen_in_time_is_named(stage: Stage) -> None:
    stage.serve("a")
    with pytest.raises(ParamstreamTimeout, match="not applied yet: 0:11, and applied is 0:10") as caught:
        stage.rows([1], VersionVector({("model", 0): 11}), timeout=2.0)
    assert (caught.value.topic, caught.value.partition) == ("model", 0)


def test_a_vector_that_names_what_was_lost_is_told(stage: Stage) -> None:
    stage.serve("a").lost = {(0, 11)}
    with pytest.raises(EventLost):
        stage.rows([1], VersionVector({("model", 0): 11}))


def test_what_is_no_vector_or_receipt_is_refused(stage: Stage) -> None:
    stage.serve("a")
    with pytest.raises(InvalidEvent, match="at_least"):
        stage.rows([1], {("model", 0): 11})


# --- replicas that fail ------------------------------------------------------------------------------------------------------------


def test_where_nobody_serves_the_partition_that_is_named(stage: Stage) -> None:
    stage.partitions(2)
    stage.serve("a", 0)
    with pytest.raises(ParamstreamTimeout, match="no replica serves the state partition") as caught:
        stage.rows(np.arange(100), timeout=0.3)
    assert (caught.value.topic, caught.value.partition) == ("model", 1)
    assert "--serve" in caught.value.remedy


def test_one_that_begins_to_serve_meanwhile_is_found(stage: Stage) -> None:
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(stage.rows, [1, 2])
        eventually(lambda: stage.reports.asked >= 2)
        stage.serve("a")
        check_rows(later.result(5), [1, 2])


def test_the_keys_of_one_that_ends_in_the_midst_are_asked_of_another(stage: Stage) -> None:
    first = stage.serve("a")
    first.may_read.clear()
    with ThreadPoolExecutor(1) as pool:
        keys = np.arange(100_000)
        later = pool.submit(stage.rows, keys)
        assert first.reading.wait(5)
        stage.serve("b")
        ending = threading.Thread(target=stage.servings["a"].close)
        ending.start()
        eventually(lambda: stage.servings["a"].closed)
        first.may_read.set()
        ending.join(5)
        check_rows(later.result(10), keys)
    assert stage.sources["b"].reads


def test_one_that_does_not_answer_is_left_for_another_and_avoided_then(stage: Stage) -> None:
    slow, quick = stage.serve("a"), stage.serve("b")
    slow.may_read.clear()
    try:
        began = time.monotonic()
        for _ in range(10):
            check_rows(stage.rows([1, 2]), [1, 2])
        assert time.monotonic() - began < 3
        assert slow.reads <= 2 and quick.reads >= 8
    finally:
        slow.may_read.set()


def test_one_that_is_slow_and_alone_is_waited_for(stage: Stage) -> None:
    slow = stage.serve("a")
    slow.may_read.clear()
    timer = threading.Timer(0.7, slow.may_read.set)
    timer.start()
    try:
        check_rows(stage.rows([1, 2]), [1, 2])
        assert slow.reads == 1
    finally:
        timer.join()


def test_one_that_serves_at_another_place_by_now_is_found_there(stage: Stage) -> None:
    stage.serve("a")
    stage.rows([1])
    stage.servings["a"].close()
    stage.serve("a", at="elsewhere")
    began = time.monotonic()
    check_rows(stage.rows([1, 2]), [1, 2])
    assert time.monotonic() - began < 2


def test_without_a_broker_those_that_are_known_go_on_answering(stage: Stage) -> None:
    stage.serve("a")
    stage.rows([1])
    stage.reports.away = True
    for _ in range(3):
        check_rows(stage.rows([1, 2]), [1, 2])


def test_one_that_turns_away_is_left_for_another(stage: Stage) -> None:
    stopped, _ = stage.serve("a"), stage.serve("b")
    stopped.stopped = ParamstreamError("its log is damaged")
    for _ in range(4):
        check_rows(stage.rows([1, 2]), [1, 2])
    assert not stopped.reads


def test_a_topic_that_was_deleted_is_said_so(stage: Stage) -> None:
    stage.reports.deleted = True
    with pytest.raises(UnknownTopic) as caught:
        stage.rows([1])
    assert caught.value.topic == "model"


def garbage_of_each_kind(number: int) -> list[bytes]:
    of = (number, 2, 4, "float32", ((0, 10),))
    return [
        b"",
        b"PL\x01\xff\xff\xff\xff",
        encode_frame(FoundRows(number + 9, *of[1:]), bytes(34)),
        encode_frame(FoundRows(*of), bytes(33)),
        encode_frame(FoundRows(*of), bytes(32) + b"\7\7"),
        encode_frame(FoundRows(number, 3, *of[2:]), bytes(51)),
    ]


@pytest.mark.parametrize("kind", range(6))
def test_one_that_answers_garbage_is_left_for_another_and_named_where_there_is_none(stage: Stage, kind: int) -> None:
    with Garbled(lambda number: garbage_of_each_kind(number)[kind]) as garbled:
        stage.reports.tell("garbled", garbled.endpoint)
        with pytest.raises(ParamstreamTimeout, match=f"'garbled' at {garbled.endpoint}: .*answer|frame"):
            stage.rows([1, 2], timeout=0.4)
        stage.serve("whole")
        check_rows(stage.rows([1, 2]), [1, 2])


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:1", "ipc:///nowhere/at/all", "not an address"])
def test_an_address_where_nobody_is_ends_at_the_deadline_and_is_named(stage: Stage, endpoint: str) -> None:
    stage.reports.tell("gone", endpoint)
    began = time.monotonic()
    with pytest.raises(ParamstreamTimeout, match="'gone' at"):
        stage.rows([1], timeout=0.4)
    assert time.monotonic() - began < 1.0
    stage.serve("there")
    check_rows(stage.rows([1, 2]), [1, 2])


def test_close_ends_look_ups_that_are_under_way(stage: Stage) -> None:
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(stage.rows, [1], None, 20.0)
        eventually(lambda: stage.reports.asked)
        stage.lookups.close(5.0)
        with pytest.raises(ParamstreamError, match="closed"):
            later.result(5)
    with pytest.raises(ParamstreamError, match="closed"):
        stage.rows([1])


class Garbled:
    """A ROUTER that answers each question with what `answer` makes of its number."""

    def __init__(self, answer: Callable[[int], bytes]) -> None:
        self._answer = answer
        self._socket, self.endpoint = router("tcp://127.0.0.1:0", insecure=False)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paramstream-garbled", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *of: object) -> None:
        self._closing.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._closing.is_set():
            if self._socket.poll(20):
                client, frame = self._socket.recv_multipart()
                asked, _ = decode_question(frame)
                with suppress(zmq.ZMQError):  # Whoever asked may have gone by now.
                    self._socket.send_multipart([client, self._answer(asked.id)])
        self._socket.close(linger=0)
