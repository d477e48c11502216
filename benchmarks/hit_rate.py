"""Hit rates of the eviction policy of tiers on Zipf traces, beside LRU, LFU and ARC at the same capacity."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paramstream.tiers.rows.policy import EvictionPolicy
from paramstream.tiers.rows.tiering import LOW_WATER_SHARE

Keys = NDArray[np.int64]

BATCH = 256
"""Requests of one call of ours, or a sixteenth of the capacity where that is fewer; the others see them one by one. Rows leave before a
call's new ones come, as in the tier.
"""


def run(quick: bool = False) -> dict[str, object]:
    """Shares of requests that hit, for a tenth and a quarter of the keys, counted over the second half of each trace.

    `_behind` is how many points ours is behind the best of the three others; below 0 it is ahead.
    """
    keys, requests = (10_000, 400_000) if quick else (100_000, 4_000_000)
    results: dict[str, object] = {"keys": keys, "requests": requests}
    for name, trace in traces(keys, requests).items():
        for share in (0.1, 0.25):
            rates = hit_rates(trace, int(keys * share))
            results |= {f"{name}_{share:.0%}_{policy}": rate for policy, rate in rates.items()}
            best = max(rate for policy, rate in rates.items() if policy != "ours")
            results[f"{name}_{share:.0%}_behind"] = 100 * (best - rates["ours"])
    return results


def hit_rates(trace: Keys, capacity: int) -> dict[str, float]:
    """The rate of each policy over the second half of `trace`, which the first one warms up."""
    policies: dict[str, Callable[[Keys, int], NDArray[np.bool_]]] = {"ours": ours, "lru": lru, "lfu": lfu, "arc": arc}
    return {name: float(hits(trace, capacity)[len(trace) // 2 :].mean()) for name, hits in policies.items()}


def traces(keys: int, requests: int, seed: int = 1) -> dict[str, Keys]:
    """Zipf traces by name: popularity that stands still, that shifts, and with scans between.

    `shifts`: eight times a twentieth of the ranks goes to other keys, the most popular ones too. `scans`: ten times half of all keys are
    read one after the other.
    """
    generator = np.random.default_rng(seed)
    key_of_rank = generator.permutation(keys)
    found: dict[str, Keys] = {}
    for alpha in (0.6, 0.8, 0.99, 1.2):
        found[f"zipf_{alpha}"] = key_of_rank[_ranks(generator, keys, requests, alpha)]
    ranks = _ranks(generator, keys, requests, 0.99)
    shift = np.arange(requests) * 8 // requests * (keys // 20)
    found["shifts"] = key_of_rank[(ranks + shift) % keys]
    scans = key_of_rank[ranks]
    for start in range(requests // 20, requests, requests // 10):
        scans[start : start + keys // 2] = (np.arange(keys // 2) + start) % keys
    found["scans"] = scans
    return found


def _ranks(generator: np.random.Generator, keys: int, requests: int, alpha: float) -> Keys:
    """Drawn with a chance of 1 / (rank + 1) ** alpha."""
    weights: NDArray[np.float64] = np.arange(1, keys + 1, dtype=np.float64) ** -alpha
    chances = np.cumsum(weights)
    drawn: Keys = np.searchsorted(chances, generator.random(requests) * float(chances[-1])).astype(np.int64)
    return np.minimum(drawn, keys - 1)


def ours(trace: Keys, capacity: int) -> NDArray[np.bool_]:
    """What a tier does: the policy's own code, a batch of requests at a time. A key that repeats in a batch hits from the second on."""
    policy = EvictionPolicy(capacity)
    slot_of = np.full(int(trace.max()) + 1, -1, np.int64)
    key_of = np.full(capacity, -1, np.int64)
    free = np.arange(capacity)
    hits = np.empty(len(trace), np.bool_)
    batch = max(1, min(BATCH, capacity // 16))
    for start in range(0, len(trace), batch):
        keys = trace[start : start + batch]
        slots = slot_of[keys]
        policy.touch(slots[slots >= 0])
        coming, first = np.unique(keys[slots < 0], return_index=True)
        hit = slots >= 0
        is_repeated = np.ones(int(np.count_nonzero(~hit)), np.bool_)
        is_repeated[first] = False
        hit[~hit] = is_repeated
        hits[start : start + len(keys)] = hit
        if len(coming) > len(free):
            leaving = policy.choose(max(len(coming) - len(free), capacity // LOW_WATER_SHARE))
            policy.left(leaving, key_of[leaving])
            slot_of[key_of[leaving]] = -1
            free = np.concatenate((free, leaving))
        taken, free = free[: len(coming)], free[len(coming) :]
        coming = coming[: len(taken)]
        slot_of[coming], key_of[taken] = taken, coming
        policy.admit(taken, coming)
    return hits


def _plain(trace: Keys) -> list[int]:
    numbers: list[int] = trace.tolist()
    return numbers


def lru(trace: Keys, capacity: int) -> NDArray[np.bool_]:
    """The key used least recently leaves."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = np.zeros(len(trace), np.bool_)
    for at, key in enumerate(_plain(trace)):
        if key in held:
            held.move_to_end(key)
            hits[at] = True
            continue
        if len(held) >= capacity:
            held.popitem(last=False)
        held[key] = None
    return hits


def lfu(trace: Keys, capacity: int) -> NDArray[np.bool_]:
    """The key used least often since the trace began leaves, counted while it was not held too: more than a tier could know."""
    counts = [0] * (int(trace.max()) + 1)
    held: set[int] = set()
    heap: list[tuple[int, int, int]] = []
    hits = np.zeros(len(trace), np.bool_)
    for at, key in enumerate(_plain(trace)):
        counts[key] += 1
        if key in held:
            hits[at] = True
            continue
        while len(held) >= capacity:
            count, since, rarest = heapq.heappop(heap)
            if counts[rarest] == count:
                held.discard(rarest)
            else:
                heapq.heappush(heap, (counts[rarest], since, rarest))
        held.add(key)
        heapq.heappush(heap, (counts[key], at, key))
    return hits


def arc(trace: Keys, capacity: int) -> NDArray[np.bool_]:
    """Adaptive replacement (Megiddo, Modha 2003): keys used once and keys used again, with traces of those that left."""
    once: OrderedDict[int, None] = OrderedDict()
    again: OrderedDict[int, None] = OrderedDict()
    left_once: OrderedDict[int, None] = OrderedDict()
    left_again: OrderedDict[int, None] = OrderedDict()
    target = 0.0
    hits = np.zeros(len(trace), np.bool_)

    def make_room(is_back: bool) -> None:
        if once and (len(once) > target or (is_back and len(once) == target)):
            left_once[once.popitem(last=False)[0]] = None
        else:
            left_again[again.popitem(last=False)[0]] = None

    for at, key in enumerate(_plain(trace)):
        if key in once or key in again:
            once.pop(key, None)
            again[key] = None
            again.move_to_end(key)
            hits[at] = True
        elif key in left_once or key in left_again:
            was_once = key in left_once
            step = len(left_again) / len(left_once) if was_once else len(left_once) / len(left_again)
            target = min(capacity, target + max(1.0, step)) if was_once else max(0.0, target - max(1.0, step))
            make_room(not was_once)
            (left_once if was_once else left_again).pop(key)
            again[key] = None
        else:
            if len(once) + len(left_once) >= capacity:
                if len(once) < capacity:
                    left_once.popitem(last=False)
                    make_room(False)
                else:
                    once.popitem(last=False)
            elif len(once) + len(again) + len(left_once) + len(left_again) >= capacity:
                if len(once) + len(again) + len(left_once) + len(left_again) >= 2 * capacity:
                    left_again.popitem(last=False)
                if len(once) + len(again) >= capacity:
                    make_room(False)
            once[key] = None
    return hits
