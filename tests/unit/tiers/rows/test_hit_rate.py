"""The policy of tiers keeps up with the best of others at the same capacity: a small run of `paramstream bench hit_rate`."""

import importlib

import numpy as np
import pytest

hit_rate = importlib.import_module("paramstream.benchmarks.hit_rate")
TRACES = hit_rate.traces(2_000, 80_000)


@pytest.mark.parametrize("name", ["zipf_0.8", "zipf_0.99", "scans"])
def test_it_is_within_three_points_of_the_best_on_a_zipf_trace(name: str) -> None:
    rates = hit_rate.hit_rates(TRACES[name], 400)
    best = max(rates[other] for other in ("lru", "lfu", "arc"))
    assert rates["ours"] > best - 0.03
    assert rates["ours"] > rates["lru"] + 0.02


def test_the_others_decide_as_they_are_defined() -> None:
    trace = np.array([1, 2, 1, 3, 1, 2, 4, 3])
    assert hit_rate.lru(trace, 2).tolist() == [False, False, True, False, True, False, False, False]
    # 3 puts 2 out, which has been used less than 1; 2 puts 3 out, and 4 puts 2 out.
    assert hit_rate.lfu(trace, 2).tolist() == [False, False, True, False, True, False, False, False]
    cold = np.array([1, 1, 2, 2, 5, 6, 7, 8, 1, 2])
    assert hit_rate.arc(cold, 4)[-2:].tolist() == [True, True], "a scan leaves what was used twice"
    assert hit_rate.lru(cold, 4)[-2:].tolist() == [False, False]
