"""Dense gradients as events: values travel, not memory, in order and to one partition; and what users see of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from fakes.publisher_stage import WINDOW_BYTES, Stage, open_stage
from paramstream.consistency.vector import VersionVector
from paramstream.consumers.events import Event, event_of
from paramstream.errors import InvalidEvent
from paramstream.events.digest import tensor_digest
from paramstream.events.kinds import DenseGradients
from paramstream.events.limits import MAX_CHUNK_BYTES
from paramstream.events.validate import check_payload

STEP = 7


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = open_stage()
    yield stage
    stage.link.auto = True
    stage.link.deliver()


def seen(stage: Stage) -> list[Event]:
    """As a processor or subscriber sees what stands."""
    found: list[Event] = []
    for frame in stage.events(0):
        check_payload(frame.payload, len(frame.bulk))
        event = event_of(frame, frame.stamp(), "m", lambda _: VersionVector())
        assert event is not None
        found.append(event)
    return found


def bytes_of(events: list[Event]) -> dict[str, bytes]:
    """The row-major bytes of each tensor, joined from its slices, which must follow each other."""
    found: dict[str, bytes] = {}
    for piece in (piece for event in events for piece in event.slices):
        before = found.get(piece.name, b"")
        assert len(before) == piece.offset * piece.values.itemsize
        found[piece.name] = before + piece.values.tobytes()
    return found


def test_gradients_of_any_strides_and_dtypes_arrive_as_their_logical_values_A01(stage: Stage) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    given: dict[str, Any] = {
        "strided": base[::2, 1::2],
        "columns": np.asfortranarray(base),
        "torch": torch.arange(6.0).reshape(2, 3).T,
        "bf16": torch.ones(3, dtype=torch.bfloat16),
        "half": base.astype(ml_dtypes.bfloat16),
        "scalar": np.float64(3.5),
        "empty": np.zeros((0, 3), np.float32),
        "ints": np.arange(3, dtype=np.int64),
        "block": {"w": base},
    }
    receipt = stage.publisher.publish_dense_gradients(given, step=STEP)
    [event] = seen(stage)
    assert (event.kind, event.version, event.number, event.count) == ("dense_gradients", STEP, 0, 1)
    expected = {
        **{
            name: np.ascontiguousarray(given[name]).tobytes()
            for name in ("strided", "columns", "half", "empty", "ints")
        },
        "torch": given["torch"].contiguous().numpy().tobytes(),
        "bf16": given["bf16"].view(torch.int16).numpy().tobytes(),
        "scalar": np.float64(3.5).tobytes(),
        "block.w": base.tobytes(),
    }
    assert bytes_of([event]) == expected
    shapes = {piece.name: piece.shape for piece in event.slices}
    assert (shapes["strided"], shapes["scalar"], shapes["empty"], shapes["torch"]) == ((2, 3), (), (0, 3), (3, 2))
    assert {piece.name: piece.digest for piece in event.slices} == {
        name: tensor_digest(data).hex() for name, data in expected.items()
    }
    assert (event.name, event.grads, receipt.outcome) == (None, None, "accepted")


def test_a_large_tensor_is_cut_and_its_events_come_in_order_in_one_partition(stage: Stage) -> None:
    large = np.arange(MAX_CHUNK_BYTES // 4 * 5 // 2, dtype=np.float32).reshape(2, -1)
    stage.publisher.publish_dense_gradients({"small": np.float32(1), "large": large, "last": np.float32(2)}, step=0)
    events = seen(stage)
    assert [(event.number, event.count) for event in events] == [(0, 3), (1, 3), (2, 3)]
    assert [[piece.name for piece in event.slices] for event in events] == [
        ["small", "large"], ["large"], ["large", "last"],
    ]  # fmt: skip
    assert bytes_of(events)["large"] == large.tobytes()
    assert not any(piece.whole for event in events for piece in event.slices if piece.name == "large")
    assert events[1].name == "large" and events[1].grads is not None and events[1].grads.ndim == 1
    assert not stage.events(1)


def test_an_event_about_one_whole_tensor_shows_it_in_its_shape(stage: Stage) -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    stage.publisher.publish_dense_gradients({"w": value}, step=STEP)
    [event] = seen(stage)
    assert event.name == "w" and event.grads is not None and event.grads.shape == (2, 3)
    assert not event.grads.flags.writeable and np.array_equal(event.grads, value)
    assert event.digest == tensor_digest(value.tobytes()).hex()


def test_values_are_copied_before_publish_returns_N08(stage: Stage) -> None:
    stage.link.auto = False
    value = np.ones(10, np.float32)
    stage.publisher.publish_dense_gradients({"w": value}, step=STEP)
    value[:] = -1
    stage.link.deliver()
    assert bytes_of(seen(stage))["w"] == np.ones(10, np.float32).tobytes()


def test_gradients_of_more_than_the_window_go_event_by_event_J01(stage: Stage) -> None:
    value = np.arange(WINDOW_BYTES, dtype=np.float32)
    assert stage.publisher.publish_dense_gradients({"w": value}, step=STEP).outcome == "accepted"
    assert bytes_of(seen(stage))["w"] == value.tobytes()


def test_many_small_tensors_share_events_within_the_limit(stage: Stage) -> None:
    given = {f"{'n' * 400}{number}": np.float32(number) for number in range(500)}
    stage.publisher.publish_dense_gradients(given, step=STEP)
    events = seen(stage)
    assert 1 < len(events) < 12
    assert list(bytes_of(events)) == list(given)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_refused_by_name_unless_it_is_to_pass(stage: Stage, value: float) -> None:
    bad = np.ones((2, 3), np.float32)
    bad[1, 2] = value
    for given in (bad, torch.from_numpy(bad).to(torch.bfloat16)):
        with pytest.raises(InvalidEvent, match=r"1 values .*\(1, 2\)") as caught:
            stage.publisher.publish_dense_gradients({"fine": np.ones(2), "bad": given}, step=STEP)
        assert (caught.value.item, caught.value.version, caught.value.topic) == ("bad", STEP, "m")
    assert stage.link.sent == []
    stage.publisher.publish_dense_gradients({"bad": bad}, step=STEP, nonfinite="pass")
    assert bytes_of(seen(stage))["bad"] == bad.tobytes()


@pytest.mark.parametrize(
    ("mapping", "step", "what"),
    [
        ({}, 1, "at least one"),
        ({"w": [1.0]}, 1, "numpy array"),
        ({"w": np.ones(2)}, -1, "version"),
        ({"w": np.array(["x"])}, 1, "not supported"),
        (torch.nn.Linear(2, 2), 1, "a module holds weights"),
        (np.ones(2), 1, "mapping"),
    ],
)
def test_bad_gradients_are_refused_before_a_byte_leaves(stage: Stage, mapping: object, step: int, what: str) -> None:
    with pytest.raises(InvalidEvent, match=what):
        stage.publisher.publish_dense_gradients(mapping, step=step)
    assert stage.link.sent == []


def test_the_pieces_of_an_event_are_named_in_its_payload(stage: Stage) -> None:
    stage.publisher.publish_dense_gradients({"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}, step=STEP)
    [frame] = stage.events(0)
    assert isinstance(frame.payload, DenseGradients)
    assert [(piece.name, piece.offset, piece.nbytes) for piece in frame.payload.pieces] == [("a", 0, 8), ("b", 0, 12)]
