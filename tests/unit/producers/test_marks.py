"""Outputs of a processor are numbered by their input and partition, and those that the sink holds are passed over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paramstream.producers.marks import Marks

P, Q = (9, 0), (9, 1)


def test_outputs_of_an_input_are_numbered_for_each_partition_from_zero() -> None:
    marks = Marks({})
    marks.begin(5)
    assert [marks.take(P), marks.take(Q), marks.take(P)] == [(5, 0), (5, 0), (5, 1)]
    marks.begin(7)
    assert marks.take(P) == (7, 0)


def test_what_the_sink_holds_is_passed_over_in_each_partition_by_itself() -> None:
    marks = Marks({P: (5, 1)})
    marks.begin(4)
    assert [marks.take(P), marks.take(Q)] == [None, (4, 0)]
    marks.begin(5)
    assert [marks.take(P), marks.take(P), marks.take(P)] == [None, None, (5, 2)]
    marks.begin(6)
    assert marks.take(P) == (6, 0)


def test_a_run_is_passed_over_only_where_its_last_event_is_there() -> None:
    marks = Marks({P: (5, 3)})
    marks.begin(5)
    assert marks.pass_run(P, 3)
    assert marks.holds_next(P)
    assert not marks.pass_run(P, 3)
    assert marks.number(P) == (5, 3)
    assert not marks.holds_next(P)


def test_all_of_an_input_is_there_where_an_output_of_a_later_one_stands() -> None:
    marks = Marks({P: (5, 0)})
    marks.begin(4)
    assert marks.is_past(P) and not marks.is_past(Q)
    marks.begin(5)
    assert not marks.is_past(P)


@given(st.lists(st.lists(st.sampled_from([P, Q]), max_size=4), max_size=8), st.data())
def test_after_any_crashes_each_output_was_sent_once_and_in_order(
    inputs: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    """Each life begins at any input at or before the first one that is missing somewhere, and ends anywhere."""
    whole = {p: [(n, i) for n, outs in enumerate(inputs, 1) for i in range(outs.count(p))] for p in (P, Q)}
    sunk: dict[tuple[int, int], list[tuple[int, int]]] = {P: [], Q: []}
    for life in range(4):
        marks = Marks({p: sent[-1] for p, sent in sunk.items() if sent})
        missing = [whole[p][len(sunk[p])][0] for p in (P, Q) if len(sunk[p]) < len(whole[p])]
        start = data.draw(st.integers(1, min([*missing, len(inputs) + 1])))
        steps_left = 1000 if life == 3 else data.draw(st.integers(0, 6))
        for number in range(start, len(inputs) + 1):
            marks.begin(number)
            for partition in inputs[number - 1]:
                mark = marks.take(partition)
                if mark is not None and steps_left:
                    sunk[partition].append(mark)
                    steps_left -= 1
    assert sunk == whole
