"""Fault case A09: values are never converted unasked on their way into a module, and never rounded unless that is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import paramstream as ps

STEP = 16_777_217
"""The first whole number that float32 does not have."""


class Counted(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("step", torch.zeros((), dtype=dtype))

    @property
    def count(self) -> float:
        return self.get_buffer("step").item()


def weights(step: int, dtype: type[np.generic]) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    return {"w": np.full(2, step, np.float32), "step": np.array(step, dtype)}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[str]:
    """A log that ends with an int32 counter, where version 1 had a float32 one."""
    url = f"file:{tmp_path / 'log'}"
    with ps.Broker(log=url) as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model")
        publisher = client.publisher("model", producer="trainer")
        publisher.publish_weights(weights(1, np.float32), version=1)
        publisher.publish_weights(weights(STEP, np.int32), version=2, schema="replace")
        publisher.flush(20)
    yield url


def test_a_restored_counter_is_not_converted_unless_asked_and_not_rounded_unless_allowed_A09(log: str) -> None:
    with ps.restore(log, "model", at=2, arrays="numpy") as restored:
        module = Counted(torch.float32)
        for cast in ("none", "exact"):
            with pytest.raises(ps.SchemaMismatch, match="step: float32 here, int32 there") as refused:
                restored.bind(module, cast=cast)
            assert (refused.value.item, refused.value.topic, refused.value.version) == ("step", "model", 2)
            assert module.count == 0.0 and module.w.tolist() == [0.0, 0.0], "nothing of it was applied"
        # Not strict it is left out, as what does not fit is.
        assert restored.bind(module, strict=False).report is not None and module.count == 0.0
        rounded = Counted(torch.float32)
        restored.bind(rounded, cast="lossy")
        assert rounded.count == STEP - 1
        for dtype, allowed in ((torch.float64, "exact"), (torch.int64, "exact"), (torch.int32, "none")):
            exact = Counted(dtype)
            restored.bind(exact, cast=allowed)  # type: ignore[arg-type]
            assert exact.count == STEP
        with pytest.raises(ps.InvalidEvent, match="cast="):
            restored.bind(Counted(torch.float32), cast="any")  # type: ignore[arg-type]


def test_a_module_whose_counter_changes_its_dtype_stays_at_its_version_A09(client: ps.Client) -> None:
    client.create_topic("model")
    publisher = client.publisher("model", producer="trainer")
    with client.replica("model", name="picky") as replica:
        replica.wait(publisher.publish_weights(weights(1, np.float32), version=1))
        module = Counted(torch.float32)
        bound = replica.bind(module)
        with pytest.raises(ps.SchemaMismatch, match=r"int32.*float32"):
            publisher.publish_weights(weights(STEP, np.int32), version=2)
        replica.wait(publisher.publish_weights(weights(STEP, np.int32), version=2, schema="replace"))
        assert (bound.version, module.count) == (1, 1.0)
        assert isinstance(bound.error, ps.SchemaMismatch) and "step: float32 here, int32 there" in str(bound.error)
        with pytest.raises(ps.SchemaMismatch, match=r"'picky'.*step: float32 here, int32 there"):
            client.wait_replicas("model", 2, count=1, timeout=20)
        replica.wait(publisher.publish_weights(weights(3, np.float32), version=3, schema="replace"))
        bound.refresh()
        assert (bound.version, module.count) == (3, 3.0)
        assert str(bound.report) == "2 of 2 applied"
