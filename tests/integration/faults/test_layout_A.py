"""Fault cases A, end to end: what arrives is the logical value, not the memory it came from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import paramstream as ps
from paramstream.events.arrays import ArrayKind
from reference.weights import check_weights, digest_of, logical_bytes, of_numpy, of_torch

TESTS = Path(__file__).parents[2]

BF16_VALUES = [1.0, 3.39e38, 1e-38, -0.0, float("nan"), float("inf")]


@pytest.fixture
def publisher(client: ps.Client) -> ps.Publisher:
    client.create_topic("model")
    return client.publisher("model", producer="trainer")


@pytest.fixture(params=["numpy", "torch"])
def replica(client: ps.Client, publisher: ps.Publisher, request: pytest.FixtureRequest) -> ps.Replica:
    arrays: ArrayKind = request.param
    return client.replica("model", arrays=arrays)


def published(publisher: ps.Publisher, replica: ps.Replica, arrays: dict[str, Any], version: int) -> ps.Weights:
    publisher.publish_weights(arrays, version=version).durable.result()
    replica.wait_version(version)
    return replica.weights()


def column_major(array: npt.NDArray[Any]) -> Any:
    return np.asfortranarray(array)


def column_major_tensor(array: npt.NDArray[Any]) -> Any:
    return torch.from_numpy(np.ascontiguousarray(array.T)).T


def values_of(array: Any) -> Any:
    return array.tolist()


@pytest.mark.parametrize("make", [of_numpy, of_torch])
def test_a_strided_view_arrives_as_its_logical_values_A01(
    publisher: ps.Publisher, replica: ps.Replica, make: Any
) -> None:
    base = make(np.arange(24, dtype=np.float32).reshape(4, 6))
    before = logical_bytes(base)
    held = published(publisher, replica, {"w": base[:, ::2]}, 1)
    assert values_of(held["w"]) == [[0, 2, 4], [6, 8, 10], [12, 14, 16], [18, 20, 22]]
    check_weights(held, {"w": base[:, ::2]}, 1)
    assert logical_bytes(base) == before


@pytest.mark.parametrize("make", [column_major, column_major_tensor])
def test_a_column_major_array_arrives_row_by_row_A03(publisher: ps.Publisher, replica: ps.Replica, make: Any) -> None:
    array = make(np.array([[11, 12, 13], [21, 22, 23]], np.float32))
    held = published(publisher, replica, {"w": array}, 1)
    assert values_of(held["w"]) == [[11, 12, 13], [21, 22, 23]]
    # Memory order is no part of the contract: the row-major array of the same values is the same version.
    again = publisher.publish_weights({"w": np.array([[11, 12, 13], [21, 22, 23]], np.float32)}, version=1)
    assert again.durable.result() <= held.vector


@pytest.mark.parametrize("make", [of_numpy, of_torch])
def test_tensors_without_values_keep_names_shapes_and_dtypes_A04(
    publisher: ps.Publisher, replica: ps.Replica, make: Any
) -> None:
    shapes: dict[str, tuple[int, ...]] = {"a": (0,), "b": (0,), "c": (0, 16), "d": (4, 0)}
    arrays = {name: make(np.empty(shape, np.float32)) for name, shape in shapes.items()}
    arrays["e"] = make(np.array([1, 2], np.float32))
    check_weights(published(publisher, replica, arrays, 1), arrays, 1)
    # None was taken for an alias of another: a version that leaves one out is not whole.
    del arrays["b"]
    with pytest.raises(ps.SchemaMismatch, match="'b'"):
        publisher.publish_weights(arrays, version=2)


@pytest.mark.parametrize("make", [of_numpy, of_torch])
def test_a_value_without_dimensions_keeps_its_shape_A06(
    publisher: ps.Publisher, replica: ps.Replica, make: Any
) -> None:
    arrays = {"scale": make(np.array(3.5, np.float32)), "step": make(np.array(7, np.int64))}
    check_weights(published(publisher, replica, arrays, 1), arrays, 1)
    arrays["step"] = make(np.array(8, np.int64))
    held = published(publisher, replica, arrays, 2)
    check_weights(held, arrays, 2)
    assert held["scale"].shape == () and float(held["scale"][()]) == 3.5 and int(held["step"]) == 8
    with pytest.raises(IndexError):
        held["scale"][0:1]


def test_bf16_keeps_its_bits_where_there_is_no_torch_A07(
    broker: ps.Broker, publisher: ps.Publisher, tmp_path: Path
) -> None:
    arrays = {"w": torch.tensor(BF16_VALUES, dtype=torch.bfloat16)}
    publisher.publish_weights(arrays, version=1).durable.result()
    done = subprocess.run(
        [sys.executable, "-S", "-m", "reference.numpy_only", broker.endpoint, "model", "1"],
        env={"PYTHONPATH": ":".join(map(str, (TESTS, TESTS.parent / "typings", _packages_without_torch(tmp_path))))},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert not told["torch"]
    dtype, shape, data, kind = told["tensors"]["w"]
    assert (dtype, shape, kind) == ("bfloat16", [6], "ndarray")
    bits = np.frombuffer(bytes.fromhex(data), np.uint16)
    assert bits.tolist() == arrays["w"].view(torch.int16).numpy().view(np.uint16).tolist()
    assert told["digest"] == digest_of(arrays)


def _packages_without_torch(folder: Path) -> Path:
    """A folder with every installed package but torch's: what an interpreter without it finds."""
    site = folder / "site"
    site.mkdir()
    for each in Path(np.__file__).parents[1].iterdir():
        if not each.name.startswith(("torch", "functorch", "__editable__")):
            (site / each.name).symlink_to(each)
    return site


@pytest.mark.parametrize("make", [of_numpy, of_torch])
def test_a_placeholder_of_shape_zero_is_refused_at_publish_A10(
    client: ps.Client, publisher: ps.Publisher, replica: ps.Replica, make: Any
) -> None:
    arrays = {"p": make(np.ones((8, 16), np.float32))}
    published(publisher, replica, arrays, 1)
    with client.subscribe("model", start="head") as later:
        with pytest.raises(ps.SchemaMismatch) as refused:
            publisher.publish_weights({"p": make(np.empty((0,), np.float32))}, version=2)
        assert "(8, 16)" in str(refused.value) and "(0,)" in str(refused.value)
        assert (refused.value.topic, refused.value.item, refused.value.version) == ("model", "p", 2)
        check_weights(replica.weights(), arrays, 1)
        # Nothing of it reached the log: the next event of the topic is of the next good version.
        publisher.publish_weights({"p": make(np.zeros((8, 16), np.float32))}, version=3).durable.result()
        assert later.next(timeout=5.0).version == 3
    replica.wait_version(3)
    assert [each.version for each in client.versions("model")] == [1, 3]
