"""Holds, switches by hand and renamed names of a bound module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
import torch

from feeding.fakes import FakeBroker
from paramstream.consumers.matching import Rename
from paramstream.consumers.replica import Replica
from paramstream.errors import InvalidEvent, ParamstreamError, ParamstreamTimeout, SchemaMismatch, VersionNotHeld
from paramstream.tiers.store import TieredStore
from reference.waiting import eventually

KEPT = 3
WIDTH = 64

F32 = npt.NDArray[np.float32]


class Pair(torch.nn.Module):
    """Its output is the pair of values of its two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, 1, bias=False)
        self.second = torch.nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[float, float]:
        return float(self.first(x).detach()) / WIDTH, float(self.second(x).detach()) / WIDTH


ONES = torch.ones(WIDTH)


def filled(value: float, prefix: str = "") -> dict[str, F32]:
    return {f"{prefix}{name}": np.full((1, WIDTH), value, np.float32) for name in ("first.weight", "second.weight")}


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def store() -> Iterator[TieredStore]:
    with TieredStore() as store:
        yield store


@pytest.fixture
def replica(broker: FakeBroker, store: TieredStore) -> Iterator[Replica]:
    with Replica(
        ["model"],
        directory=broker.directory,
        make_link=broker.make_link,
        store=store,
        keep_versions=KEPT,
        arrays="numpy",
        timeout=2.0,
    ) as replica:
        yield replica


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def publish(broker: FakeBroker, number: int, arrays: dict[str, F32] | None = None) -> None:
    broker.weights.version(number, arrays or filled(float(number)))
    broker.settle()
    broker.durable[broker.weights.partition] = broker.weights.position
    broker.beat()


def other_thread(pool: ThreadPoolExecutor, call: Callable[[], object]) -> object:
    """What `call` gives in a thread of its own, which must not wait for long."""
    return pool.submit(call).result(5.0)


# --- hold -------------------------------------------------------------------------------------------------------------------


def test_a_generation_over_100_commits_has_one_version_at_the_same_addresses(
    broker: FakeBroker, replica: Replica, store: TieredStore
) -> None:
    publish(broker, 1)
    module = Pair()
    addresses = [tensor.data_ptr() for tensor in module.state_dict().values()]
    bound = replica.bind(module)
    with bound.hold() as held:
        one = store.usage().dense_bytes
        for number in range(2, 102):
            publish(broker, number)
            assert module(ONES) == (1.0, 1.0)
        assert (held.version, bound.version, replica.weights().version) == (1, 1, 101)
        assert (held["first.weight"] == 1.0).all()
        # Beside the versions that are kept: the one held, and one that is let go while the next comes.
        assert store.usage().dense_bytes <= (KEPT + 2) * one
    assert bound.version == 101 and module(ONES) == (101.0, 101.0)
    assert [tensor.data_ptr() for tensor in module.state_dict().values()] == addresses
    publish(broker, 102)
    assert (held["first.weight"] == 1.0).all()


def test_holds_nest_and_overlap_and_the_last_that_leaves_takes_the_newest(broker: FakeBroker, replica: Replica) -> None:
    publish(broker, 1)
    module = Pair()
    bound = replica.bind(module)
    with bound.hold() as outer:
        entered, leave = threading.Event(), threading.Event()

        def generate() -> int:
            with bound.hold() as held:
                entered.set()
                assert leave.wait(10.0)
                assert module(ONES) == (1.0, 1.0)
                return held.version

        thread = ThreadPoolExecutor(1)
        overlapping = thread.submit(generate)
        assert entered.wait(10.0)
        publish(broker, 2)
        with bound.hold() as inner:
            assert module(ONES) == (1.0, 1.0)
        assert outer.version == inner.version == bound.version == 1
    assert bound.version == 1, "the other thread is still inside"
    leave.set()
    assert overlapping.result(10.0) == 1
    thread.shutdown()
    assert bound.version == 2


def test_a_forward_of_another_thread_goes_on_beside_a_hold_and_a_further_hold_lets_the_newer_version_in_first(
    broker: FakeBroker, replica: Replica, pool: ThreadPoolExecutor
) -> None:
    publish(broker, 1)
    module = Pair()
    bound = replica.bind(module)

    def generate() -> int:
        with bound.hold() as held:
            return held.version

    with bound.hold():
        publish(broker, 2)
        assert other_thread(pool, lambda: module(ONES)) == (1.0, 1.0)
        later: Future[int] = pool.submit(generate)
        assert other_thread(pool, lambda: module(ONES)) == (1.0, 1.0)
        assert not later.done()
    assert later.result(5.0) == 2


def test_a_block_that_raises_ends_its_hold(broker: FakeBroker, replica: Replica) -> None:
    publish(broker, 1)
    bound = replica.bind(Pair())
    with pytest.raises(KeyError), bound.hold() as held:
        publish(broker, 2)
        held["nothing"]
    assert bound.version == 2


def test_a_hold_before_the_first_version_says_so(broker: FakeBroker, replica: Replica) -> None:
    bound = replica.bind(Pair())
    with pytest.raises(VersionNotHeld), bound.hold():
        pass
    publish(broker, 1)
    with bound.hold() as held:
        assert held.version == 1


# --- switch -----------------------------------------------------------------------------------------------------------------


def test_a_module_that_does_not_follow_goes_where_it_is_switched_and_nowhere_else(
    broker: FakeBroker, replica: Replica
) -> None:
    publish(broker, 1)
    module = Pair()
    bound = replica.bind(module, follow=False)
    publish(broker, 2)
    publish(broker, 3)
    assert not bound.follows and bound.version == 1 and module(ONES) == (1.0, 1.0)
    bound.switch(3)
    assert bound.version == 3 and module(ONES) == (3.0, 3.0)
    bound.switch(2)
    publish(broker, 4)
    assert bound.version == 2 and module(ONES) == (2.0, 2.0)
    bound.follow()
    assert bound.version == 4 and module(ONES) == (4.0, 4.0)
    publish(broker, 5)
    assert bound.version == 5


def test_switching_to_a_version_that_is_not_kept_changes_nothing(broker: FakeBroker, replica: Replica) -> None:
    module = Pair()
    bound = replica.bind(module)
    for number in range(1, 3 + KEPT):
        publish(broker, number)
    with pytest.raises(VersionNotHeld, match="kept are: 3, 4, 5"):
        bound.switch(2)
    publish(broker, 6)
    assert bound.follows and bound.version == 6
    bound.switch(6)
    for number in range(7, 12):
        publish(broker, number)
    bound.switch(6)
    assert bound.version == 6, "the version that it has counts as kept"


def test_a_switch_waits_for_holds_within_its_limit(
    broker: FakeBroker, replica: Replica, pool: ThreadPoolExecutor
) -> None:
    publish(broker, 1)
    publish(broker, 2)
    module = Pair()
    bound = replica.bind(module, follow=False)
    bound.switch(1)
    with bound.hold():
        with pytest.raises(InvalidEvent, match="inside"):
            bound.switch(2)
        with pytest.raises(ParamstreamTimeout):
            other_thread(pool, lambda: bound.switch(2, timeout=0.05))
        switching = pool.submit(bound.switch, 2)
        assert module(ONES) == (1.0, 1.0)
    switching.result(5.0)
    assert bound.version == 2 and module(ONES) == (2.0, 2.0)


def test_a_closed_module_is_switched_no_more_and_stays(broker: FakeBroker, replica: Replica) -> None:
    publish(broker, 1)
    module = Pair()
    with replica.bind(module) as bound:
        pass
    bound.close(timeout=1.0)
    publish(broker, 2)
    with pytest.raises(ParamstreamError, match="not bound"):
        bound.switch(2)
    assert bound.version == 1 and module(ONES) == (1.0, 1.0)


def unwrapped(name: str) -> str:
    return name.removeprefix("wrapped.")


# --- names ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rename",
    [
        {"wrapped.first.weight": "first.weight", "wrapped.second.weight": "second.weight"},
        unwrapped,
    ],
)
def test_a_wrapped_name_is_not_applied_without_a_mapping_and_wholly_with_one_B07(
    broker: FakeBroker, replica: Replica, rename: Rename
) -> None:
    publish(broker, 1)
    module, other = Pair(), Pair()
    bound = replica.bind(module)
    assert str(bound.report) == "2 of 2 applied"
    publish(broker, 2, filled(2.0, prefix="wrapped."))
    assert bound.version == 1 and module(ONES) == (1.0, 1.0)
    assert isinstance(bound.error, SchemaMismatch) and bound.error.version == 2
    assert bound.report is not None and bound.report.applied == 0
    assert bound.report.unmatched == ("wrapped.first.weight", "wrapped.second.weight")
    assert bound.report.missing == ("first.weight", "second.weight")
    for name in (*bound.report.unmatched, *bound.report.missing):
        assert name in str(bound.error) and name in replica.status().last_error
    assert replica.status().failed["model"] is bound.error
    renamed = replica.bind(other, rename=rename)
    assert renamed.report is not None and (renamed.report.applied, renamed.report.of) == (2, 2)
    assert renamed.version == 2 and other(ONES) == (2.0, 2.0)


def test_a_mapping_that_joins_two_names_is_refused(broker: FakeBroker, replica: Replica) -> None:
    publish(broker, 1)
    with pytest.raises(SchemaMismatch, match=r"'first.weight' and 'second.weight' the same name"):
        replica.bind(Pair(), rename={"second.weight": "first.weight"}, strict=False)


def test_a_rename_that_raises_is_the_users_and_the_replica_goes_on(broker: FakeBroker, replica: Replica) -> None:
    def rename(name: str) -> str:
        if name.startswith("odd"):
            raise KeyError(name)
        return name

    publish(broker, 1)
    bound = replica.bind(Pair(), rename=rename)
    publish(broker, 2, filled(2.0, prefix="odd."))
    assert bound.version == 1 and "KeyError" in str(bound.error)
    publish(broker, 3)
    assert bound.version == 3 and bound.error is None


def test_nothing_that_matches_is_an_error_even_where_not_strict(broker: FakeBroker, replica: Replica) -> None:
    publish(broker, 1, filled(1.0, prefix="other."))
    with pytest.raises(SchemaMismatch):
        replica.bind(Pair(), strict=False)


def test_a_copy_that_fails_half_way_is_taken_back(broker: FakeBroker, replica: Replica) -> None:
    class Shared(Pair):
        """Its last tensor cannot be overwritten in place once it shares its elements."""

        def __init__(self) -> None:
            super().__init__()
            self.third = torch.nn.Module()
            self.third.register_buffer("values", torch.zeros(4))

    def with_third(value: float) -> dict[str, F32]:
        return {**filled(value), "third.values": np.full(4, value, np.float32)}

    publish(broker, 1, with_third(1.0))
    module = Shared()
    bound = replica.bind(module)
    third = module.get_buffer("third.values")
    whole = third.detach().clone()
    third.set_(torch.zeros(1).expand(4))  # type: ignore[call-overload]  # any source is one
    publish(broker, 2, with_third(2.0))
    assert bound.version == 1 and module(ONES) == (1.0, 1.0)
    assert bound.error is not None and (bound.error.item, bound.error.version) == ("third.values", 2)
    assert "could not be copied" in replica.status().last_error
    third.set_(whole)  # type: ignore[call-overload]
    publish(broker, 3, with_third(3.0))
    assert bound.error is None and bound.version == 3 and module(ONES) == (3.0, 3.0)


def test_a_first_copy_that_fails_half_way_lets_nothing_run(broker: FakeBroker, replica: Replica) -> None:
    module = Pair()
    bound = replica.bind(module)
    weight = module.second.weight
    whole = weight.detach().clone()
    weight.data = torch.zeros(1, 1).expand(1, WIDTH)
    publish(broker, 1)
    with pytest.raises(ParamstreamError, match="could not be copied"):
        module(ONES)
    with pytest.raises(ParamstreamError, match="could not be copied"), bound.hold():
        pass
    weight.data = whole
    publish(broker, 2)
    assert eventually(lambda: bound.version == 2) and module(ONES) == (2.0, 2.0)
