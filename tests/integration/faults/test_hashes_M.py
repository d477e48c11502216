"""Fault case M10: where a key belongs is the same in every process, whatever seeds the hashes of that process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
KEYS = 100
PARTITIONS = 7

PLACES = """
import json
from paramstream.events.digest import key_hash, partition_of
from paramstream.transport.slots import slot_of

keys = [f"user:{n}".encode() for n in range(KEYS)] + ["a||b".encode(), "||".encode()]
print(json.dumps([[partition_of(key, PARTITIONS), key_hash(key)] for key in keys] + [slot_of((n, 0)) for n in range(KEYS)]))
"""


def places(seed: str) -> list[object]:
    """Of every key its partition and hash, and of every partition its slot, as a process with that seed has them."""
    code = PLACES.replace("KEYS", str(KEYS)).replace("PARTITIONS", str(PARTITIONS))
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, cwd=TESTS,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found: list[object] = json.loads(done.stdout)
    return found


def test_two_processes_with_different_hash_seeds_put_every_key_in_the_same_place_M10() -> None:
    one, two = places("1"), places("2")
    assert one == two
    # A few are pinned: a change of the hash is a change of every log.
    assert [one[0], one[KEYS + 1], *one[-KEYS : 2 - KEYS]] == [
        [2, 9296640054432561966],
        [3, 10913258706155553856],
        8,
        17,
    ]
