"""Broker, publisher and replica under a steady load: nothing grows. Short forms of `make soak`."""

from pathlib import Path
from typing import Any, cast

import pytest

from soak.figures import MIB
from soak.run import Load, soak

SHORT = Load(seconds=15, version_bytes=MIB, versions_per_s=20, log_limit=64 * MIB, sample_every_s=0.25)
MINUTE = Load(seconds=60, version_bytes=8 * MIB, versions_per_s=6, log_limit=256 * MIB)


@pytest.mark.parametrize("load", [SHORT, pytest.param(MINUTE, marks=pytest.mark.slow)], ids=["short", "minute"])
def test_memory_descriptors_and_the_log_of_weights_stay_flat_under_load(load: Load, tmp_path: Path) -> None:
    result: dict[str, Any] = soak(load, tmp_path)
    assert result["flat"], result
    assert result["trends"]["weight_log_mib"]["most"] <= cast("float", result["weight_log_bound_mib"]), result
    # It was a load: versions went by, and the replica has the last one, whole.
    assert result["versions"] > load.seconds, result
    assert (result["replica"]["version"], result["replica"]["torn"]) == (result["versions"], 0)
