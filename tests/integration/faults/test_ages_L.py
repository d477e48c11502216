"""Fault case L11: a broker's clock is stepped by weeks and years, and nothing goes early or stays for ever."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import paramstream as ps
from processes.victim import Victim
from processes.world import START_S
from reference.waiting import eventually
from reference.weights import check_weights

DAY_S = 86_400.0
CLOCKS_S = (-21 * DAY_S, 3650 * DAY_S, -21 * DAY_S, 0.0)
"""Three weeks ago, ten years ahead, and back."""
RETAINED = 3
SHORT_S = 0.5
WAIT_S = 30.0


def weights_of(version: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return {"w": np.full(1000, version, np.float32)}


def test_under_a_clock_that_is_stepped_age_counts_from_arrival_L11(tmp_path: Path) -> None:
    with Victim(tmp_path) as victim, ps.connect(victim.endpoint, timeout=START_S) as client:
        client.create_topic("model", retain_versions=RETAINED)
        publisher = client.publisher("model", producer="trainer")
        replica = client.replica("model", arrays="numpy")
        version = 0
        for clock_s in CLOCKS_S:
            victim.stop()
            victim.start_again(clock_s)
            for _ in range(2):
                version += 1
                publisher.publish_weights(weights_of(version), version)
            publisher.put(f"stays-{clock_s}-{version}", b"for ever")
            publisher.put("long", b"lasts", ttl=3600.0)
            began = time.monotonic()
            replica.wait(publisher.put("short", b"lasts", ttl=SHORT_S), WAIT_S)
            # Whatever the clock says, an entry lives as long as it was given, from when it came.
            assert replica.get("long") == b"lasts"
            found, within_s = replica.get("short"), time.monotonic() - began
            assert found == b"lasts" or within_s > 0.8 * SHORT_S
            eventually(lambda: replica.get("short") is None)
            assert time.monotonic() - began >= SHORT_S
            publisher.flush(WAIT_S)
        # A sweep goes by versions and by what somebody needs, never by a stamp.
        known = client.versions("model")
        assert [each.version for each in known if each.restorable][-RETAINED:] == [version - 2, version - 1, version]
        assert [each.time for each in known] == sorted(each.time for each in known)
        with client.replica("model", start="earliest", arrays="numpy") as late:
            assert late.digest() == replica.digest()
            for number, clock_s in enumerate(CLOCKS_S, 1):
                assert late.get(f"stays-{clock_s}-{2 * number}") == b"for ever"
            eventually(lambda: late.get("short") is None)  # With the first heartbeat it knows what time it is.
            assert late.get("long") == b"lasts"
        for held in range(version - RETAINED + 1, version + 1):
            with ps.restore(f"file:{victim.folder}", "model", at=held, arrays="numpy") as restored:
                check_weights(restored.weights(), weights_of(held), held)
