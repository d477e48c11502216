"""Which rows leave: the queues, pins and traces of the eviction policy."""

import numpy as np
import pytest
from numpy.typing import NDArray

from paramstream.tiers.rows.policy import MAX_USES, EvictionPolicy, load_steps
from paramstream.tiers.rows.policy_steps import Steps, choose, link, unlink

PLAIN = Steps(link, unlink, choose)


def ints(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def filled(count: int, spare: int = 0) -> EvictionPolicy:
    policy = EvictionPolicy(count + spare)
    policy.admit(np.arange(count), np.arange(count))
    return policy


def evict(policy: EvictionPolicy, count: int) -> list[int]:
    """Slots are keys here."""
    chosen = policy.choose(count)
    policy.left(chosen, chosen)
    return [int(slot) for slot in chosen]


def test_who_came_in_lately_is_not_thrown_out_before_older_ones_that_are_not_used_M03() -> None:
    a, b, c, d, e = range(5)
    policy = EvictionPolicy(5)
    for slot in (a, b, c):
        policy.admit(ints(slot), ints(slot))
    policy.touch(ints(a))
    assert evict(policy, 1) == [b]
    policy.admit(ints(d), ints(d))
    assert evict(policy, 1) == [c]
    policy.admit(ints(e), ints(e))
    assert sorted(evict(policy, 3)) == [a, d, e]


def test_a_scan_passes_through_and_leaves_what_is_in_use() -> None:
    policy = filled(100, spare=10)
    in_use = np.arange(100)
    for first in range(1000, 2000, 10):
        policy.touch(in_use)
        # Slots of those that left are taken again, as a table does.
        slots = np.setdiff1d(np.arange(110), in_use)[:10]
        policy.admit(slots, np.arange(first, first + 10))
        chosen = policy.choose(10)
        policy.left(chosen, chosen)
        in_use = np.setdiff1d(in_use, chosen)
    assert len(in_use) >= 95, "all but the few that the short queue had room for"


def test_a_key_that_comes_back_soon_stays_longer_than_one_that_is_new() -> None:
    policy = filled(40)
    assert evict(policy, 2) == [0, 1]
    policy.admit(ints(0), ints(0))
    policy.admit(ints(1), ints(1000))
    order = evict(policy, 40)
    assert order[-1] == 0
    assert order.index(1) == 38


def test_each_use_is_good_for_one_round_up_to_a_limit() -> None:
    policy = filled(4)
    for _ in range(3):
        policy.touch(ints(0, 0))
    policy.touch(ints(1))
    for _ in range(MAX_USES + 5):
        policy.touch(ints(2))
    order = evict(policy, 4)
    assert order[0] == 3
    assert sorted(order) == [0, 1, 2, 3]


def test_what_is_pinned_is_never_chosen_and_all_else_can_be() -> None:
    policy = filled(10)
    policy.pin(ints(3, 7))
    policy.pin(ints(3))
    policy.touch(np.arange(10))
    assert policy.evictable == 8
    assert sorted(evict(policy, 100)) == [0, 1, 2, 4, 5, 6, 8, 9]
    assert evict(policy, 1) == []
    policy.unpin(ints(3, 7))
    assert evict(policy, 5) == [7]
    policy.unpin(ints(3))
    assert evict(policy, 5) == [3]
    assert len(policy) == policy.evictable == 0


@pytest.mark.parametrize("steps", [PLAIN, load_steps()], ids=["plain", "loaded"])
def test_what_has_no_pin_is_found_behind_a_main_queue_of_pins(steps: Steps) -> None:
    policy = EvictionPolicy(1000, steps)
    policy.admit(np.arange(1000), np.arange(1000))
    policy.pin(np.arange(995))
    assert sorted(evict(policy, 1000)) == list(range(995, 1000))
    policy.admit(np.arange(995, 1000), np.arange(2000, 2005))
    policy.touch(np.arange(990, 1000))
    assert sorted(evict(policy, 4)) == list(range(995, 999))


def test_a_pin_while_a_row_is_leaving_counts_when_it_stays() -> None:
    policy = filled(2)
    chosen = policy.choose(2)
    assert policy.evictable == 0
    policy.pin(ints(1))
    assert policy.are_leaving(chosen).all()
    policy.stay(chosen)
    assert (len(policy), policy.evictable) == (2, 1)
    assert evict(policy, 2) == [0]


def test_what_is_deleted_leaves_from_anywhere_and_its_slot_begins_anew() -> None:
    policy = filled(6)
    policy.pin(ints(2))
    policy.touch(ints(4))
    leaving = policy.choose(1)
    policy.forget(ints(2, 3, *leaving))
    assert policy.evictable == len(policy) == 3
    policy.admit(ints(2), ints(50))
    assert evict(policy, 9) == [1, 5, 2, 4]


def test_slots_are_added_while_it_is_used() -> None:
    policy = filled(3)
    policy.pin(ints(0))
    evict(policy, 1)
    policy.grow(100)
    policy.admit(np.arange(3, 100), np.arange(3, 100))
    policy.admit(ints(1), ints(1))
    assert len(policy) == 100
    assert evict(policy, 100)[-1] == 1, "its trace was kept"
    assert policy.evictable == 0


def plays(steps: Steps, seed: int) -> list[list[int]]:
    """Everything that a random run decides."""
    generator = np.random.default_rng(seed)
    policy = EvictionPolicy(64, steps)
    key_of = np.full(64, -1)
    decisions: list[list[int]] = []
    for _ in range(200):
        free = np.flatnonzero(key_of < 0)
        coming = free[: generator.integers(0, len(free) + 1)]
        key_of[coming] = generator.choice(500, len(coming), replace=False)
        policy.admit(coming, key_of[coming])
        held = np.flatnonzero(key_of >= 0)
        policy.touch(generator.choice(64, 20))
        pinned = generator.permutation(held)[: len(held) // 4]
        policy.pin(pinned)
        chosen = policy.choose(int(generator.integers(0, 40)))
        assert not set(chosen.tolist()) & set(pinned.tolist())
        stays = generator.random(len(chosen)) < 0.2
        policy.left(chosen[~stays], key_of[chosen[~stays]])
        key_of[chosen[~stays]] = -1
        policy.stay(chosen[stays])
        policy.unpin(pinned)
        deleted = generator.permutation(np.flatnonzero(key_of >= 0))[:2]
        policy.forget(deleted)
        key_of[deleted] = -1
        assert len(policy) == policy.evictable == np.count_nonzero(key_of >= 0)
        decisions.append(chosen.tolist())
    return decisions


@pytest.mark.parametrize("seed", range(3))
def test_compiled_and_plain_loops_decide_alike(seed: int) -> None:
    pytest.importorskip("numba")
    assert plays(load_steps(), seed) == plays(PLAIN, seed)
