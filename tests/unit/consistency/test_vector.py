"""Version vectors merge to the least upper bound, compare partly, and cross processes as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramstream.consistency.position import position
from paramstream.consistency.vector import VersionVector
from paramstream.errors import InvalidEvent

names = st.text(min_size=1, max_size=12)
positions = st.integers(0, 2**64 - 1)
vectors = st.dictionaries(st.tuples(names, st.integers(0, 1024)), positions, max_size=6).map(VersionVector)


@given(vectors)
def test_the_text_of_a_vector_reads_back_as_the_same_vector(vector: VersionVector[str]) -> None:
    assert VersionVector.parse(str(vector)) == vector


@given(vectors, vectors)
def test_a_merge_has_seen_what_either_has_and_no_more(a: VersionVector[str], b: VersionVector[str]) -> None:
    merged = a.merge(b)
    assert a <= merged and b <= merged
    assert all(at in (a.get(partition), b.get(partition)) for partition, at in merged.items())


def test_vectors_that_each_saw_something_else_are_not_ordered() -> None:
    a, b = VersionVector({("w", 0): 1}), VersionVector({("w", 1): 1})
    assert not a <= b and not b <= a


def test_a_missing_partition_stands_at_the_start() -> None:
    assert VersionVector({("w", 0): 0}) <= VersionVector[str]()


@pytest.mark.parametrize(
    "text",
    [
        "w", "w/0", "w/0=1", "w/x=1:2", "w/0=1:999999999999", "w/0=-1:0", "w/-1=1:0", "w/4294967296=1:0", "w/0=99999999999:0", "w/٣=1:0",
        "\udc80/0=1:0", "w/0= 1:0",
    ],
)  # fmt: skip
def test_text_that_is_no_vector_is_refused_by_its_entry(text: str) -> None:
    with pytest.raises(ValueError, match="not a version vector entry"):
        VersionVector.parse(text)


def test_a_vector_that_names_a_partition_twice_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="w/0 twice"):
        VersionVector.parse("w/0=1:0,w/1=1:0,w/0=1:1")


def test_a_vector_reads_as_topic_partition_epoch_offset() -> None:
    assert str(VersionVector({("a/b", 2): position(3, 4)})) == "a%2Fb/2=3:4"
