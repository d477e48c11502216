"""The benchmark of rows: what it compares with is right, and all of it runs, small."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

rows: Any = importlib.import_module("paramstream.benchmarks.rows")
raw_rows: Any = importlib.import_module("paramstream.benchmarks.raw_rows")
redis_rows: Any = importlib.import_module("paramstream.benchmarks.redis_rows")


def test_the_raw_loops_find_and_change_the_right_rows() -> None:
    pytest.importorskip("numba")
    keys = raw_rows.keys_of(1000)
    table = raw_rows.RawTable(keys, 4)
    slots = np.array([3, 999, 3])
    table.scatter_add_s(slots, np.arange(12, dtype=np.float32).reshape(3, 4))
    expected = np.zeros((1000, 4), np.float32)
    np.add.at(expected, slots, np.arange(12, dtype=np.float32).reshape(3, 4))
    out = np.empty((1000, 4), np.float32)
    table.gather_s(keys[::-1].copy(), out)
    assert np.array_equal(out[::-1], expected)


def test_redis_is_asked_in_its_own_words() -> None:
    assert redis_rows._command(b"MGET", [b"a\r\n", b"bc"]) == b"*3\r\n$4\r\nMGET\r\n$3\r\na\r\n\r\n$2\r\nbc\r\n"


@pytest.mark.slow
def test_the_benchmark_runs_from_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.delenv("PARAMSTREAM_REDIS", raising=False)
    monkeypatch.setenv("PATH", "")
    results = rows.measure(rows.TINY)
    for spread in ("uniform", "zipf"):
        for name in ("applied_mrows_s", "applied_share", "lookup_mrows_s", "lookup_share"):
            assert results[f"{spread}_{name}"] > 0
    assert 0 < results["fresh_p50_ms"] <= results["fresh_p99_ms"]
    assert "no redis-server" in results["redis"]
