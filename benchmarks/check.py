"""Seconds to check a history of 100,000 operations in 16 processes, with reading it, and to find a witness in a broken one."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from paramstream.consistency.checking import Model, check_history

from .histories import stream_history, write_history

OPERATIONS = 100_000


def run(quick: bool = False) -> dict[str, object]:
    """For each model a history that holds and one that is broken at one place; the best of three rounds.

    `pram_of_pram_s` checks what processes see that apply in PRAM order only.
    """
    count, rounds = (OPERATIONS // 10, 1) if quick else (OPERATIONS, 3)
    results: dict[str, object] = {"operations": count}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        write_history(path, stream_history(count))
        for model in Model:
            results[f"{model}_s"] = _best(path, model, rounds, ok=True)
        write_history(path, stream_history(count, causal=False))
        results["pram_of_pram_s"] = _best(path, Model.PRAM, rounds, ok=True)
        write_history(path, stream_history(count, broken=True))
        for model in Model:
            results[f"{model}_witness_s"] = _best(path, model, rounds, ok=False)
    return results


def _best(path: Path, model: Model, rounds: int, *, ok: bool) -> float:
    seconds: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        verdict = check_history([path], model)
        seconds.append(time.perf_counter() - began)
        assert verdict.ok is ok, verdict
    return min(seconds)
