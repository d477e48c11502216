"""Files of histories are checked: what is left out, what several files are together, what a witness says."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramstream.consistency import pram
from paramstream.consistency.checking import KEPT_FAULTS, Model, check_history
from paramstream.consistency.gate import Ordering
from paramstream.consistency.history import Apply, Follow, Line, Lost, Read, Undo, Write, encode_line
from paramstream.consistency.position import position
from paramstream.errors import InvalidHistory
from reference.litmus import CASES


def save(folder: Path, *lines: Line, name: str = "history.jsonl") -> Path:
    path = folder / name
    path.write_bytes(b"".join(map(encode_line, lines)))
    return path


def case(name: str) -> list[Line]:
    return next(each for each in CASES if each.name == name).lines()


def test_a_history_of_which_all_was_lost_holds(tmp_path: Path) -> None:
    for model in Model:
        verdict = check_history([save(tmp_path, Write("t", "x", 1), Lost("t", "x", 1))], model)
        assert verdict.ok and verdict.operations == verdict.deliveries == 0


def test_nothing_at_all_is_no_history(tmp_path: Path) -> None:
    with pytest.raises(InvalidHistory, match="not one line"):
        check_history([save(tmp_path)], Model.PRAM)


@pytest.mark.parametrize("model", Model)
def test_a_read_alone_of_a_value_from_nowhere_is_its_own_witness(tmp_path: Path, model: Model) -> None:
    verdict = check_history([save(tmp_path, Read("r", "x", 1))], model)
    assert verdict.witness is not None and not verdict.ok
    assert verdict.witness.why == "r read x=1 (line 1), which nobody wrote"
    assert [operation.line for operation in verdict.witness.operations] == [1]


def test_a_witness_names_lines_and_says_why(tmp_path: Path) -> None:
    more: list[Line] = [Write("t", "w", 1), Read("q", "w", 1), Write("q", "z", 1)]
    verdict = check_history([save(tmp_path, *more, *case("a_chain_of_writers_backwards"), *more[1:2])], Model.CAUSAL)
    assert verdict.operations == 10 and verdict.witness is not None
    assert verdict.witness.why == "r read x=1 (line 9), although x=2, which comes after that, is in its past"
    assert verdict.witness.because == (
        "x=1 comes before x=2: t wrote x=1 (line 4), then t wrote y=1 (line 5), which u read (line 6), then u wrote x=2 (line 7)",
        "x=2 comes before x=1: r read x=1 (line 9) with x=2 in its past:"
        + " u wrote x=2 (line 7), which r read (line 8), then r read x=1 (line 9)",
    )
    found = [(each.process, each.op, each.key, each.value, each.line) for each in verdict.witness.operations]
    assert found == [
        ("t", "w", "x", 1, 4),
        ("t", "w", "y", 1, 5),
        ("u", "r", "y", 1, 6),
        ("u", "w", "x", 2, 7),
        ("r", "r", "x", 2, 8),
        ("r", "r", "x", 1, 9),
    ]


def test_a_witness_tells_a_circle_of_causes(tmp_path: Path) -> None:
    verdict = check_history([save(tmp_path, *case("a_circle_of_causes"))], Model.CAUSAL)
    assert verdict.witness is not None
    assert verdict.witness.why.startswith("it runs in a circle: ")
    assert "which t read (line 1), then t wrote y=1 (line 2)" in verdict.witness.why


def test_a_witness_tells_two_reads_that_no_order_suits(tmp_path: Path) -> None:
    verdict = check_history([save(tmp_path, *case("replicas_disagree"))], Model.CONVERGING)
    assert verdict.witness is not None
    assert (
        verdict.witness.why == "there is no order of these writes that suits all reads: x=1 before x=2, x=2 before x=1"
    )
    assert len(verdict.witness.because) == 2


@pytest.mark.parametrize("model", Model)
def test_a_witness_is_found_among_thousands_of_other_operations(tmp_path: Path, model: Model) -> None:
    others: list[Line] = []
    for number in range(3000):
        others += [Write("t", f"k{number % 50}", number), Read("r", f"k{number % 50}", number)]
    broken = case("a_version_goes_back")
    verdict = check_history([save(tmp_path, *others[:3000], *broken, *others[3000:])], model)
    assert verdict.witness is not None
    assert [operation.line for operation in verdict.witness.operations] == [3001, 3002, 3003, 3004]


def test_a_late_violation_of_pram_costs_a_few_checks_of_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0
    saturate = pram._Reader._saturate  # pyright: ignore[reportPrivateUsage]

    def counted(reader: pram._Reader) -> None:  # pyright: ignore[reportPrivateUsage]
        nonlocal checks
        checks += len(reader._before) > 1_000  # pyright: ignore[reportPrivateUsage]
        saturate(reader)

    monkeypatch.setattr(pram._Reader, "_saturate", counted)  # pyright: ignore[reportPrivateUsage]
    lines: list[Line] = [each for n in range(5_000) for each in (Write("t", "x", n), Read("r", "x", n))]
    verdict = check_history([save(tmp_path, *lines, Read("r", "x", 4_000))], Model.PRAM)
    assert verdict.witness is not None and len(verdict.witness.operations) == 4
    assert 1 < checks < 10


def test_what_was_lost_is_left_out_with_all_its_reads_wherever_that_is_said(tmp_path: Path) -> None:
    history: list[Line] = [Write("t", "x", 1), Write("t", "x", 2), Read("r", "x", 2), Read("r", "x", 1)]
    assert not check_history([save(tmp_path, *history)], Model.CAUSAL).ok
    for place in range(len(history) + 1):
        lines = [*history[:place], Lost("other", "x", 2), *history[place:]]
        verdict = check_history([save(tmp_path, *lines)], Model.CAUSAL)
        assert verdict.ok and verdict.operations == 2


def test_what_one_process_did_in_two_files_is_in_their_order(tmp_path: Path) -> None:
    first = save(tmp_path, Write("t", "x", 1), Write("t", "x", 2), Read("r", "x", 2), name="first.jsonl")
    second = save(tmp_path, Read("r", "x", 1), name="second.jsonl")
    assert check_history([second, first], Model.CAUSAL).ok
    verdict = check_history([first, second], Model.CAUSAL)
    assert verdict.witness is not None
    assert f"line 1 of {second}" in verdict.witness.why
    assert {each.file for each in verdict.witness.operations} == {str(first), str(second)}


def test_a_value_that_is_written_twice_to_one_key_is_a_bad_history(tmp_path: Path) -> None:
    first = save(tmp_path, Write("t", "x", 1), Write("t", "y", 1), name="first.jsonl")
    second = save(tmp_path, Write("t", "x", True), Write("u", "x", 1), name="second.jsonl")
    with pytest.raises(InvalidHistory, match=f"{second}, line 2: 1 is written .*'x' a second time.* line 1 of {first}"):
        check_history([first, second], Model.PRAM)


def test_a_history_that_would_take_too_much_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, *case("replicas_disagree"))
    monkeypatch.setattr("paramstream.consistency.checking.MAX_CELLS", 11)
    with pytest.raises(InvalidHistory, match="6 operations with 2 processes that write are too many"):
        check_history([path], Model.PRAM)
    monkeypatch.setattr("paramstream.consistency.checking.MAX_CELLS", 12)
    assert check_history([path], Model.PRAM).ok


def test_true_and_one_are_two_values(tmp_path: Path) -> None:
    path = save(tmp_path, Write("t", "x", True), Write("t", "x", 1), Read("r", "x", 1), Read("r", "x", True))
    assert not check_history([path], Model.PRAM).ok


def test_each_replica_is_held_to_its_own_order_of_delivery_whatever_the_model(tmp_path: Path) -> None:
    def replica(name: str, ordering: Ordering) -> list[Line]:
        return [
            Follow(name, ordering, "m/0", position(1, 0)),
            Follow(name, ordering, "m/1", position(1, 0)),
            Apply(name, "m/0", position(1, 1), {}, {"m/1": position(1, 1)}),
            Apply(name, "m/1", position(1, 1), {}, {}),
            Undo(name, "m/1", position(1, 0)),
        ]

    path = save(tmp_path, *replica("causal one", Ordering.CAUSAL), *replica("pram one", Ordering.PRAM))
    for model in Model:
        verdict = check_history([path], model)
        assert verdict.witness is None and not verdict.ok
        assert verdict.deliveries == 10 and verdict.fault_count == 1
        fault = verdict.faults[0]
        assert (fault.process, fault.file, fault.line) == ("causal one", str(path), 3)
        assert fault.problem == "m/0 1:1 needs m/1 1:1, applied 1:0"


def test_faults_of_delivery_are_counted_and_the_first_ones_are_kept(tmp_path: Path) -> None:
    lines: list[Line] = [Apply("r", "m/0", position(1, 2), {}, {}) for _ in range(3 * KEPT_FAULTS)]
    verdict = check_history([save(tmp_path, *lines)], Model.PRAM)
    assert verdict.fault_count == 3 * KEPT_FAULTS
    assert [fault.line for fault in verdict.faults] == list(range(1, KEPT_FAULTS + 1))
