"""Small histories whose verdicts are known, each for one thing that a stream of parameters must or may do."""

from __future__ import annotations

from dataclasses import dataclass

from paramstream.consistency.history import Line, Read, Write

NONE = ""
ALL = "pram causal causal+"


@dataclass(frozen=True)
class Litmus:
    name: str
    text: str
    """`process: w(key,value) r(key,value)`, processes apart by `|`; `-` is the initial value."""
    holds: str
    """The models that it is one of. Causal does not imply PRAM: it explains each read by itself."""
    why: str
    """What its verdict hangs on."""

    def lines(self) -> list[Line]:
        return [
            _line(process.strip(), op) for part in self.text.split("|") for process, ops in [part.split(":")]
            for op in ops.split()
        ]  # fmt: skip

    def is_(self, model: str) -> bool:
        return model in self.holds.split()


def _line(process: str, text: str) -> Line:
    key, value = text[2:-1].split(",")
    if text[0] == "w":
        return Write(process, key, int(value))
    return Read(process, key, None if value == "-" else int(value))


CASES = (
    Litmus("a_version_goes_back", "t: w(v,1) w(v,2) | r: r(v,2) r(v,1)", NONE, "one writer's order is not kept"),
    Litmus("an_old_entry_beside_a_new_one", "t: w(a,1) w(b,1) w(a,2) w(b,2) | r: r(b,2) r(a,1)", NONE, "a=2 was before b=2"),
    Litmus("a_torn_step", "t: w(a,1) w(b,1) w(a,2) w(b,2) | r: r(a,2) r(b,1) r(b,2)", ALL, "no order forbids it"),
    Litmus("a_manifest_before_its_shard", "t: w(s,1) w(m,1) | r: r(m,1) r(s,-)", NONE, "one writer wrote both"),
    Litmus("a_manifest_of_a_coordinator", "t: w(s,1) | c: r(s,1) w(m,1) | r: r(m,1) r(s,-)", "pram", "two writers wrote them"),
    Litmus("a_chain_of_writers_backwards", "t: w(x,1) w(y,1) | u: r(y,1) w(x,2) | r: r(x,2) r(x,1)", "pram", "u had seen x=1"),
    Litmus("replicas_disagree", "t: w(x,1) | u: w(x,2) | r: r(x,1) r(x,2) | q: r(x,2) r(x,1)", "pram causal", "no newest for both"),
    Litmus("replicas_see_two_keys_crosswise", "t: w(x,1) | u: w(y,1) | r: r(x,1) r(y,-) | q: r(y,1) r(x,-)", ALL, "late is fine"),
    Litmus("own_write_not_seen", "t: w(x,1) r(x,-)", NONE, "a process sees what it wrote"),
    Litmus("a_read_before_its_write", "t: r(x,1) w(x,1)", NONE, "nothing comes before its cause"),
    Litmus("a_circle_of_causes", "t: r(x,1) w(y,1) | u: r(y,1) w(x,1)", "pram", "each read what the other wrote next"),
    Litmus("a_value_from_nowhere", "t: w(x,1) | r: r(x,2)", NONE, "nobody wrote it"),
    Litmus("two_writers_take_turns", "t: w(x,1) w(y,1) | u: w(x,2) r(y,1) r(x,2)", ALL, "x=1 came before x=2"),
    Litmus("the_first_of_two_again", "t: w(x,1) | u: w(x,2) | r: r(x,1) r(x,2) r(x,1)", "causal", "each read alone is fine"),
    Litmus(
        "ages_in_a_circle_over_two_keys",
        "t: w(x,1) w(y,1) | u: w(y,2) w(x,2) | r: r(y,1) r(x,2) r(y,1) | q: r(x,2) r(y,1) r(x,1)",
        "pram causal",
        "r saw x=2 when it had y=1, and with that x=1; q saw x=1 when it had x=2",
    ),
    Litmus(
        "an_older_write_that_only_a_later_read_shows",
        "t: w(z,1) w(x,1) w(k,1) | u: w(x,2) | r: r(x,2) r(z,-) r(k,1) r(x,2)",
        "causal causal+",
        "as r has x=2 behind k=1 still, x=1 and z=1 came before x=2 for it",
    ),
    Litmus("nothing_but_the_start", "r: r(x,-) r(y,-) r(x,-)", ALL, "the initial values"),
)  # fmt: skip
