"""The step of a parameter server: what counts, what does not, and the bits of the weights, against plain numpy."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import paramstream as ps
from paramstream.consumers.events import Event
from paramstream.consumers.processors.processor import Processor
from paramstream.consumers.processors.state import decode_state, encode_state
from paramstream.consumers.processors.trained import BLOCK
from paramstream.events.limits import MAX_CHUNK_BYTES
from reference.parameter_server import Model, Tensors, events_of, summed

OPTIMIZERS = (ps.SGD(lr=0.1), ps.Adagrad(lr=0.05, initial_accumulator_value=0.1), ps.Adam(lr=0.01))
TRAINERS = ("trainer-0", "trainer-1", "trainer-2")
SHAPES = {"w": (3, 4), "b": (), "block": (BLOCK + 5,), "none": (0, 2)}


def tensors(seed: int) -> Tensors:
    chance = np.random.default_rng(seed)
    return {name: np.asarray(chance.normal(size=shape), np.float32) for name, shape in SHAPES.items()}


class Run:
    """A server with its state, and what it has written."""

    def __init__(self, server: Processor, *, crashes: random.Random | None = None) -> None:
        self._server, self._crashes = server, crashes
        self.state: dict[Any, Any] = {}
        self.versions: list[tuple[int, dict[str, bytes]]] = []
        self.entries: dict[bytes, bytes] = {}

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            self._server(event, self.state, self)
            if self._crashes is not None and self._crashes.random() < 0.3:
                kept = encode_state(self.state)
                self.state = decode_state(kept.tree, memoryview(b"".join(kept.bulk)))

    def publish_weights(self, weights: Tensors, version: int) -> None:
        self.versions.append((version, {name: value.tobytes() for name, value in weights.items()}))

    def put(self, key: bytes, value: bytes) -> None:
        self.entries[key] = value

    @property
    def counts(self) -> dict[str, int]:
        return {name: count for name, count in self.state["counts"].items() if count}

    @property
    def numbers(self) -> list[int]:
        return [version for version, _ in self.versions]


def bits(weights: Tensors) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in weights.items()}


def server(**given: Any) -> Processor:
    about: dict[str, Any] = {"optimizer": ps.SGD(lr=0.5), "initial": {"w": np.zeros(2, np.float32)}, "trainers": 2}
    return ps.parameter_server("grads", "weights", **about | given)


def ones(value: float = 1.0) -> Tensors:
    return {"w": np.full(2, value, np.float32)}


def w_of(run: Run) -> list[float]:
    return [float(value) for value in np.frombuffer(run.versions[-1][1]["w"], np.float32)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("combine", ["mean", "sum"])
def test_steps_are_summed_to_the_bits_of_a_plain_reference_whoever_comes_first_and_whenever_it_crashes(
    optimizer: Any, combine: Any
) -> None:
    initial, chance = tensors(0), random.Random(3)
    run = Run(server(optimizer=optimizer, initial=initial, trainers=TRAINERS, combine=combine), crashes=chance)
    model = Model(initial, optimizer)
    for step in range(1, 6):
        given = [(name, tensors(10 * step + number)) for number, name in enumerate(TRAINERS)]
        model.apply(summed(given, mean=combine == "mean"))
        chance.shuffle(given)
        for name, gradients in given:
            run.take(events_of(gradients, step, name))
        assert run.versions[-1] == (step, bits(model.weights))
    assert run.numbers == [0, 1, 2, 3, 4, 5]
    assert run.counts == {"applied": 15}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_contributions_that_are_applied_as_they_come_give_the_bits_of_a_plain_reference(optimizer: Any) -> None:
    initial = tensors(0)
    run = Run(server(optimizer=optimizer, initial=initial, trainers=None), crashes=random.Random(1))
    model = Model(initial, optimizer)
    for number, (step, name) in enumerate([(1, "a"), (1, "b"), (2, "a"), (9, "a"), (2, "b")], 1):
        model.apply(tensors(number))
        run.take(events_of(tensors(number), step, name))
        assert run.versions[-1] == (number, bits(model.weights))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_weights_are_those_of_torch_within_the_tolerance_of_floats(optimizer: Any) -> None:
    about = {"lr": optimizer.lr}
    if isinstance(optimizer, ps.Adagrad):
        about["initial_accumulator_value"] = optimizer.initial_accumulator_value
    parameter = torch.nn.Parameter(torch.from_numpy(tensors(0)["w"].copy()))
    reference = getattr(torch.optim, type(optimizer).__name__)([parameter], **about)
    run = Run(server(optimizer=optimizer, initial={"w": tensors(0)["w"]}, trainers=1))
    for step in range(1, 20):
        parameter.grad = torch.from_numpy(tensors(step)["w"])
        reference.step()
        run.take(events_of({"w": tensors(step)["w"]}, step, "a"))
    found = np.frombuffer(run.versions[-1][1]["w"], np.float32).reshape(3, 4)
    np.testing.assert_allclose(found, parameter.detach().numpy(), rtol=2e-5, atol=1e-6)


def test_a_trainer_that_dies_in_the_middle_of_a_call_sends_it_again_and_it_counts_once() -> None:
    large = {"w": np.ones(MAX_CHUNK_BYTES, np.float32)}
    run = Run(server(initial={"w": np.zeros(MAX_CHUNK_BYTES, np.float32)}, trainers=1), crashes=random.Random(0))
    first, again = events_of({"w": -large["w"]}, 1, "a"), events_of(large, 1, "a", incarnation=2)
    assert len(first) > 2
    run.take([*first[:2], *again])
    assert (run.numbers, run.counts) == ([0, 1], {"applied": 1, "torn": 1})
    assert run.versions[-1][1] == bits({"w": np.full(MAX_CHUNK_BYTES, -0.5, np.float32)})
    # What is left of a call whose beginning was lost is nothing.
    run.take([*events_of(large, 2, "a")[1:], *events_of(large, 2, "a")])
    assert (run.numbers, run.counts) == ([0, 1, 2], {"applied": 2, "torn": 1})


def test_the_end_of_one_call_does_not_complete_the_beginning_of_another() -> None:
    size = MAX_CHUNK_BYTES
    run = Run(server(initial={"w": np.zeros(size, np.float32)}, trainers=1))
    grads = {"w": np.ones(size, np.float32)}
    run.take([*events_of(grads, 1, "a")[:1], *events_of(grads, 1, "a", incarnation=2)[1:]])
    assert (run.numbers, run.counts) == ([0], {"torn": 1})


def test_a_call_that_has_fewer_values_than_its_shape_says_does_not_count() -> None:
    run = Run(server())
    [event] = events_of(ones(), 1, "a")
    [piece] = event.slices
    run.take([dataclasses.replace(event, slices=(dataclasses.replace(piece, shape=(3,)),))])
    assert (run.numbers, run.counts) == ([0], {"torn": 1})


def test_what_waits_is_a_copy_and_keeps_no_event_in_memory() -> None:
    run = Run(server())
    run.take(events_of(ones(), 1, "a"))
    assert run.state["open"][1]["a"]["w"].flags.writeable


def test_a_call_that_lacks_an_event_does_not_count() -> None:
    large = {"w": np.ones(MAX_CHUNK_BYTES, np.float32)}
    run = Run(server(initial={"w": np.zeros(MAX_CHUNK_BYTES, np.float32)}, trainers=1))
    events = events_of(large, 1, "a")
    run.take([events[0], *events[2:]])
    assert (run.numbers, run.counts) == ([0], {"torn": 1})


def test_a_step_that_is_sent_twice_counts_once_and_the_first_one_does_I03() -> None:
    run = Run(server())
    run.take([*events_of(ones(1), 1, "a"), *events_of(ones(100), 1, "a"), *events_of(ones(3), 1, "b")])
    assert (w_of(run), run.counts) == ([-1.0, -1.0], {"applied": 2, "repeated": 1})


def test_what_comes_for_a_step_that_is_applied_is_late() -> None:
    run = Run(server())
    run.take([*events_of(ones(), 1, "a"), *events_of(ones(), 1, "b"), *events_of(ones(9), 1, "a")])
    run.take([*events_of(ones(9), 0, "c"), *events_of(ones(9), 1, "c")])
    assert (run.numbers, w_of(run), run.counts) == ([0, 1], [-0.5, -0.5], {"applied": 2, "late": 3})


def test_a_lower_step_that_waits_is_abandoned_when_a_higher_one_is_complete() -> None:
    run = Run(server())
    run.take([*events_of(ones(9), 1, "a"), *events_of(ones(), 2, "a"), *events_of(ones(), 2, "b")])
    assert (run.numbers, w_of(run), run.counts) == ([0, 2], [-0.5, -0.5], {"applied": 2, "abandoned": 1})
    run.take(events_of(ones(9), 1, "b"))
    assert (run.numbers, run.counts) == ([0, 2], {"applied": 2, "abandoned": 1, "late": 1})


def test_a_call_in_the_middle_of_which_its_step_is_abandoned_comes_late() -> None:
    size = MAX_CHUNK_BYTES
    run = Run(server(initial={"w": np.zeros(size, np.float32)}))
    grads = {"w": np.ones(size, np.float32)}
    slow = events_of(grads, 1, "slow")
    run.take([*slow[:1], *events_of(grads, 2, "a"), *events_of(grads, 2, "b")])
    assert run.state["coming"]["slow"]["tensors"] == {}
    run.take(slow[1:])
    assert (run.numbers, run.counts) == ([0, 2], {"applied": 2, "late": 1})


def test_as_they_come_the_steps_of_a_producer_must_rise() -> None:
    run = Run(server(trainers=None))
    for step in (2, 2, 1, 3):
        run.take(events_of(ones(), step, "a"))
    assert (run.numbers, run.counts) == ([0, 1, 2], {"applied": 2, "repeated": 1, "late": 1})


@pytest.mark.parametrize(
    "gradients",
    [{"v": np.ones(2, np.float32)}, {"w": np.ones(3, np.float32)}, {"w": np.ones(2, np.int64)}, {"i": np.ones(2, np.int64)}],
)  # fmt: skip
def test_gradients_that_do_not_fit_the_weights_are_refused_as_a_whole(gradients: Tensors) -> None:
    run = Run(server(initial={"w": np.zeros(2, np.float32), "i": np.arange(2)}))
    run.take([*events_of({"w": np.ones(2, np.float32)} | gradients, 1, "a"), *events_of(ones(), 1, "b")])
    assert (run.numbers, run.counts) == ([0], {"refused": 1})
    run.take(events_of(ones(), 1, "a"))
    assert (run.numbers, w_of(run), run.counts) == ([0, 1], [-0.5, -0.5], {"applied": 2, "refused": 1})


def test_a_producer_that_is_no_trainer_is_left_out() -> None:
    run = Run(server(trainers=["a", "b"]))
    run.take([*events_of(ones(9), 1, "x"), *events_of(ones(), 1, "a"), *events_of(ones(), 1, "b")])
    assert (w_of(run), run.counts) == ([-0.5, -0.5], {"applied": 2, "stranger": 1})


def test_a_name_that_a_trainer_leaves_out_counts_as_zeros_and_one_that_all_leave_out_stands_still() -> None:
    zeros = np.zeros(2, np.float32)
    run = Run(server(initial={"w": zeros, "v": zeros}, optimizer=ps.Adam(lr=0.1)))
    run.take([*events_of(ones(2), 1, "a"), *events_of({"none": np.ones(0)}, 1, "x")])
    run.take(events_of({"w": zeros[:0].reshape(0)} | ones(2), 1, "b"))
    assert run.versions[-1][1]["v"] == zeros.tobytes()
    assert run.state["trained"]["v"]["numbers"] is None
    half = Run(server(initial={"w": zeros, "v": zeros}))
    half.take([*events_of(ones(2) | {"v": np.ones(2, np.float32)}, 1, "a"), *events_of(ones(2), 1, "b")])
    assert w_of(half) == [-1.0, -1.0]
    assert np.frombuffer(half.versions[-1][1]["v"], np.float32).tolist() == [-0.25, -0.25]


def test_the_first_contribution_may_be_the_first_weights() -> None:
    run = Run(server(initial="first"), crashes=random.Random(5))
    first: Tensors = {"w": np.array([1, 2], np.float32), "ids": np.arange(3)}
    run.take([*events_of(first, 7, "a"), *events_of(ones(9), 7, "b")])
    assert (run.versions, run.counts) == ([(7, bits(first))], {"late": 1})
    run.take([*events_of(ones(), 8, "a"), *events_of(ones(), 8, "b")])
    assert (run.numbers, w_of(run)) == ([7, 8], [0.5, 1.5])
    assert run.versions[-1][1]["ids"] == np.arange(3).tobytes()


def test_first_weights_may_come_from_a_module_or_a_function_and_are_those_of_then() -> None:
    module = torch.nn.Linear(2, 1, dtype=torch.bfloat16)
    expected = {name: value.view(torch.int16).numpy().tobytes() for name, value in module.state_dict().items()}
    made = server(initial=module)
    with torch.no_grad():
        module.weight.fill_(9)
    for run in (Run(made), Run(server(initial=lambda: {"w": np.ones(2, np.float32)}))):
        run.take(events_of({"w": np.ones(2)}, 1, "a"))
        assert run.versions == [(0, expected if run.versions[0][1].keys() == expected.keys() else bits(ones()))]


def test_low_precision_weights_are_kept_in_float32_so_that_small_updates_add_up() -> None:
    initial = {"w": np.ones(2, ml_dtypes.bfloat16)}
    run = Run(server(initial=initial, trainers=1, optimizer=ps.SGD(lr=1.0)), crashes=random.Random(2))
    for step in range(1, 17):
        run.take(events_of({"w": np.full(2, 2.0**-10, ml_dtypes.bfloat16)}, step, "a"))
    assert run.versions[-1][1]["w"] == np.full(2, 1 - 2.0**-6, ml_dtypes.bfloat16).tobytes()


def test_versions_are_published_after_so_many_updates() -> None:
    run = Run(server(trainers=1, every=3))
    for step in range(1, 8):
        run.take(events_of(ones(), step, "a"))
    assert run.numbers == [0, 3, 6]


def test_another_optimizer_goes_on_with_the_weights_and_numbers_of_its_own() -> None:
    run = Run(server(trainers=1, optimizer=ps.Adam(lr=0.1)))
    run.take(events_of(ones(), 1, "a"))
    before = np.array(w_of(run), np.float32)
    again = Run(server(trainers=1, optimizer=ps.Adagrad(lr=0.5)))
    again.state = run.state
    again.take(events_of(ones(), 2, "a"))
    assert w_of(again) == (before - np.float32(0.5)).tolist()


def test_a_report_says_what_counted_and_who_is_waited_for() -> None:
    run = Run(server(report="about"))
    run.take(
        [*events_of(ones(), 3, "a"), *events_of(ones(), 1, "a"), *events_of(ones(), 1, "a"), *events_of(ones(), 1, "b")]
    )
    about = json.loads(run.entries[b"about"])
    assert (about["version"], about["updates"], about["waiting"]) == (1, 1, {"3": ["a"]})
    assert (about["counts"]["applied"], about["counts"]["repeated"]) == (2, 1)


def test_more_steps_that_wait_than_allowed_stop_the_server_and_name_who_is_missing() -> None:
    run = Run(server(trainers=["a", "b"], ahead=2))
    run.take([*events_of(ones(), 1, "a"), *events_of(ones(), 2, "a")])
    with pytest.raises(ps.InvalidEvent, match="missing: b") as caught:
        run.take(events_of(ones(), 3, "a"))
    assert caught.value.version == 3


def test_events_of_other_kinds_are_passed_by() -> None:
    run = Run(server())
    run.take([ps.Event(topic="grads", partition=0, position=9, kind="put", vector=ps.VersionVector())])
    assert (run.state, run.versions) == ({}, [])


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"optimizer": ps.RowwiseAdagrad()}, "no rows"),
        ({"optimizer": "adam"}, "no optimizer"),
        ({"combine": "max"}, "combine"),
        ({"every": 0}, "every"),
        ({"ahead": True}, "ahead"),
        ({"trainers": 0}, "trainers"),
        ({"trainers": "a"}, "trainers"),
        ({"trainers": []}, "trainers"),
        ({"trainers": ["a", "a"]}, "trainers"),
        ({"initial": "last"}, "initial"),
        ({"initial": {}}, "at least one"),
        ({"initial": {"w": [1]}}, "numpy array"),
        ({"report": ""}, "key"),
    ],
)
def test_a_server_that_cannot_be_is_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(ps.InvalidEvent, match=what):
        server(**given)
