"""What samples over time say: a figure is *flat* where its last fifth is like its second one.

The first fifth is left out: buffers, rings and the log fill up there, and are kept from then on.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

MIB = 1024 * 1024

RSS_SHARE = 0.10
RSS_BYTES = 8 * MIB
"""Memory may differ by a tenth and this much: allocators keep what they like."""

DESCRIPTORS = 5

LOG_SHARE = 0.10


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment, `at_s` seconds after the first one."""

    at_s: float
    rss_bytes: Mapping[str, int]
    """Resident memory by process."""
    descriptors: Mapping[str, int]
    weight_bytes: int
    """Of the log's files of weight partitions."""
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Trend:
    """The medians of a figure in the second and in the last fifth, the greatest one from the second fifth on, and the verdict."""

    second_fifth: float
    last_fifth: float
    most: float
    is_flat: bool


def trend(values: Sequence[float], share: float, slack: float) -> Trend:
    """Flat: the last fifth's median is at most `share` and `slack` above the second one's. `values` are evenly spaced."""
    fifth = len(values) // 5
    assert fifth, "too few samples"
    second, last = statistics.median(values[fifth : 2 * fifth]), statistics.median(values[-fifth:])
    return Trend(second, last, max(values[fifth:]), last <= second * (1 + share) + slack)


def record(samples: Sequence[Sample], segment_bytes: int) -> dict[str, object]:
    """Every figure's trend; sizes in MiB. `flat` is whether all of them are.

    Weights in the log go segment by segment, so their median may differ by one. State has no snapshot to be trimmed behind
    and grows with every put: it is told, and judged by nobody.
    """
    trends: dict[str, Trend] = {}
    for process in samples[0].rss_bytes:
        rss = [each.rss_bytes[process] / MIB for each in samples]
        trends[f"{process}_rss_mib"] = trend(rss, RSS_SHARE, RSS_BYTES / MIB)
        trends[f"{process}_descriptors"] = trend([each.descriptors[process] for each in samples], 0, DESCRIPTORS)
    weights = [each.weight_bytes / MIB for each in samples]
    trends["weight_log_mib"] = trend(weights, LOG_SHARE, segment_bytes / MIB)
    return {
        "flat": all(each.is_flat for each in trends.values()),
        "not_flat": [name for name, each in trends.items() if not each.is_flat],
        "trends": {name: asdict(each) for name, each in trends.items()},
        "state_log_mib": round(samples[-1].state_bytes / MIB, 2),
        "seconds": round(samples[-1].at_s, 1),
    }
