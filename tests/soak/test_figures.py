"""What counts as flat."""

import pytest

from soak.figures import DESCRIPTORS, MIB, RSS_BYTES, RSS_SHARE, Sample, record, trend


def samples(rss: list[float], descriptors: list[int], weights: list[float]) -> list[Sample]:
    return [
        Sample(float(at), {"broker": int(each * MIB)}, {"broker": files}, int(log * MIB), at * 1000)
        for at, (each, files, log) in enumerate(zip(rss, descriptors, weights, strict=True))
    ]


def test_what_fills_up_in_the_first_fifth_is_no_growth() -> None:
    assert trend([10, 50, 100, 100, 100, 100, 100, 100, 100, 100], 0.0, 0.0).is_flat


def test_what_goes_on_growing_is_growth() -> None:
    steady = [100 + 3.0 * at for at in range(20)]
    found = trend(steady, RSS_SHARE, RSS_BYTES / MIB)
    assert (found.second_fifth, found.last_fifth, found.is_flat) == (116.5, 152.5, False)


def test_peaks_are_told_and_not_judged() -> None:
    found = trend([100.0] * 8 + [500.0] + [100.0] * 11, 0.0, 0.0)
    assert (found.most, found.is_flat) == (500.0, True)


@pytest.mark.parametrize(
    ("rss", "files", "weights", "grown"),
    [
        ([100.0] * 10, [20] * 10, [50.0] * 10, []),
        ([100.0] * 5 + [200.0] * 5, [20] * 10, [50.0] * 10, ["broker_rss_mib"]),
        ([100.0] * 10, [20] * 5 + [20 + DESCRIPTORS + 1] * 5, [50.0] * 10, ["broker_descriptors"]),
        ([100.0] * 10, [20] * 10, [50.0] * 5 + [70.0] * 5, ["weight_log_mib"]),
        ([100.0] * 10, [20] * 10, [50.0] * 5 + [54.0] * 5, []),
    ],
)
def test_each_figure_is_judged_by_itself(
    rss: list[float], files: list[int], weights: list[float], grown: list[str]
) -> None:
    found = record(samples(rss, files, weights), segment_bytes=4 * MIB)
    assert (found["not_flat"], found["flat"]) == (grown, not grown)
