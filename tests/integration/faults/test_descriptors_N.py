"""Fault cases N, in processes that may open 256 files: what is closed gives its descriptors back, and want of them is an error."""

from pathlib import Path

import pytest

from processes.child import Child

WITHIN_S = 600.0
STEADY = 5
"""Between any two rounds, the first ones left out: ZeroMQ starts its threads, and closes in its own time."""


def assert_steady(what: str, rounds: int, folder: Path) -> None:
    with Child("descriptors", what, folder, rounds, errors=folder / "errors") as child:
        counts: list[int] = child.read(WITHIN_S)["counts"]
        child.end(WITHIN_S)
    later = counts[len(counts) // 5 :]
    # What a close has not given back yet is gone a few rounds later: a leak is in the lowest counts too.
    fifth = len(later) // 4
    first, last = min(later[:fifth]), min(later[-fifth:])
    assert abs(last - first) <= STEADY, counts


def test_connecting_and_closing_over_and_over_keeps_descriptors_steady_N09(tmp_path: Path) -> None:
    assert_steady("connects", 100, tmp_path)


def test_starting_and_closing_brokers_keeps_descriptors_steady_N09(tmp_path: Path) -> None:
    assert_steady("restarts", 20, tmp_path)


@pytest.mark.slow
def test_2000_connects_keep_descriptors_steady_N09(tmp_path: Path) -> None:
    assert_steady("connects", 2000, tmp_path)


@pytest.mark.slow
def test_200_restarts_of_a_broker_keep_descriptors_steady_N09(tmp_path: Path) -> None:
    assert_steady("restarts", 200, tmp_path)


def test_where_no_descriptor_is_left_there_is_an_error_and_all_goes_on_once_there_is_N09(tmp_path: Path) -> None:
    with Child("descriptors", "limit", tmp_path, 1, errors=tmp_path / "errors") as child:
        ended = child.read(WITHIN_S)["ended"]
        child.end(WITHIN_S)
    assert ended == {
        "first broker": "BindFailed",
        "broker": "BindFailed",
        "connect": "ConnectFailed",
        "replica": "ConnectFailed",
        "topic": "CorruptLog",
        "put": "",
        "topics afterwards": "model",
        "key afterwards": "b'2'",
        "close": "",
    }
