"""Every decoder, fed with damaged input: it returns, or raises what it promises, within its memory. `target.py` says it in full."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzzing.__main__ import main
from fuzzing.findings import smaller
from fuzzing.mutations import Damage, Edit, damaged
from fuzzing.target import CORPUS, Target, TooMuchMemory
from fuzzing.targets import FUZZERS, TARGETS, chosen, inputs

DAMAGES = st.lists(
    st.builds(Damage, st.sampled_from(Edit), st.integers(0, 1 << 12), st.integers(0, 1 << 12)), min_size=1, max_size=6
)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Decoders may warn of what they pass over."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(params=list(TARGETS.values()), ids=list(TARGETS))
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    found: Target = request.param
    yield found
    found.close()


def test_a_damaged_input_is_decoded_or_refused_with_a_typed_error(target: Target) -> None:
    seeds = list(target.seeds())
    for seed in seeds[: target.examples]:
        # What our own encoders wrote, and what a first call fills.
        with suppress(*target.errors):
            target.decode(seed)

    @settings(max_examples=target.examples, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from(seeds), DAMAGES)
    def search(seed: bytes, damages: list[Damage]) -> None:
        target.check(damaged(seed, damages))

    search()


@pytest.mark.parametrize(
    ("target", "data"),
    [
        pytest.param(target, path.read_bytes(), id=f"{target.name}/{path.name}")
        for target in TARGETS.values()
        for path in target.corpus()
    ],
)
def test_what_was_found_before_stays_mended(target: Target, data: bytes) -> None:
    try:
        target.check(data)
    finally:
        target.close()


def test_every_folder_of_the_corpus_belongs_to_a_decoder() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} <= set(TARGETS)


def test_each_input_of_a_fuzzer_names_the_decoder_that_it_was_made_for() -> None:
    for fuzzer, targets in FUZZERS.items():
        made = [(target.name, seed) for target in targets for seed in target.seeds()]
        named = [(target.name, data) for target, data in (chosen(fuzzer, data) for data in inputs(fuzzer))]
        assert {name for name, _ in made} == {target.name for target in targets}
        assert len(named) >= len(made)


def test_a_decoder_that_believes_a_length_is_caught() -> None:
    def greedy(data: bytes) -> None:
        bytearray(int.from_bytes(data[:4], "little"))

    careless = Target("greedy", greedy, lambda: [b"\x08\0\0\0"])
    careless.check(b"\x08\0\0\0")
    with pytest.raises(TooMuchMemory, match="8 bytes of input"):
        careless.check(b"\0\0\0\x02" + bytes(4))


def test_an_exception_that_a_decoder_does_not_promise_is_caught() -> None:
    with pytest.raises(IndexError):
        Target("short", lambda data: data[3], lambda: [b"1234"]).check(b"123")


def test_a_machine_without_atheris_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_nothing(name: str) -> None: ...

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)
    monkeypatch.setattr(sys, "argv", ["fuzzing", "text"])
    assert main() == 2
    assert "fuzzing needs atheris" in capsys.readouterr().err


def test_what_is_found_is_made_small() -> None:
    assert smaller(b"some bytes, then the bad one: \xff, and more", lambda data: b"\xff" in data) == b"\xff"
