"""Checkpoints on disk: what safetensors itself wrote is read as it is, and what we write it reads back the same."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import safetensors.torch
import torch

from paramstream.cli.checkpoints import read_checkpoint, write_checkpoint
from paramstream.errors import InvalidEvent

TENSORS = {
    "bf16": torch.randn(3, 5).bfloat16(),
    "fp8": torch.randn(7).to(torch.float8_e4m3fn),
    "fp8.wide": torch.randn(7).to(torch.float8_e5m2),
    "float16": torch.randn(2, 2).half(),
    "float64": torch.randn(4).double(),
    "int64": torch.tensor([-(2**60), 5]),
    "bool": torch.tensor([True, False, True]),
    "complex": torch.randn(2).to(torch.complex64),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 3),
    "naïve ✓": torch.ones(1, dtype=torch.uint8),
}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype
        and first[name].shape == second[name].shape
        and raw(first[name]) == raw(second[name])
        for name in first
    )


def test_what_is_read_and_written_again_is_identical_tensor_by_tensor(tmp_path: Path) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "in.safetensors")
    found = read_checkpoint(tmp_path / "in.safetensors")
    nbytes = write_checkpoint(tmp_path / "out.safetensors", found, {"format": "pt"})
    assert nbytes == (tmp_path / "out.safetensors").stat().st_size
    assert same(safetensors.torch.load_file(tmp_path / "out.safetensors"), TENSORS)
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_bf16_and_fp8_are_read_as_themselves(tmp_path: Path) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "in.safetensors")
    found = read_checkpoint(tmp_path / "in.safetensors")
    assert found["bf16"].dtype == ml_dtypes.bfloat16
    assert found["fp8"].dtype == ml_dtypes.float8_e4m3fn
    assert found["fp8.wide"].dtype == ml_dtypes.float8_e5m2
    assert found["bf16"].tobytes() == raw(TENSORS["bf16"])


def test_strided_values_are_written_row_major(tmp_path: Path) -> None:
    array: npt.NDArray[Any] = np.arange(12, dtype=np.int32).reshape(3, 4).T[::2]
    write_checkpoint(tmp_path / "out.safetensors", {"a": array}, {})
    assert np.array_equal(read_checkpoint(tmp_path / "out.safetensors")["a"], array)


def test_a_folder_of_shards_is_read_by_its_index(tmp_path: Path) -> None:
    names = sorted(TENSORS)
    weight_map = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for shard in set(weight_map.values()):
        own = {name: TENSORS[name] for name in names if weight_map[name] == shard}
        safetensors.torch.save_file(own, tmp_path / shard)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    write_checkpoint(tmp_path / "whole.safetensors", read_checkpoint(tmp_path), {})
    assert same(safetensors.torch.load_file(tmp_path / "whole.safetensors"), TENSORS)


def test_an_index_that_names_a_tensor_no_shard_has_is_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "one.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidEvent, match="lacks a tensor") as caught:
        read_checkpoint(tmp_path)
    assert caught.value.item == "b"


@pytest.mark.parametrize("home", ["../elsewhere.safetensors", "/etc/passwd"])
def test_an_index_that_names_a_file_outside_its_folder_is_refused(tmp_path: Path, home: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": home}}))
    with pytest.raises(InvalidEvent, match="outside its folder"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', "{"])
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InvalidEvent, match="no index"):
        read_checkpoint(tmp_path)


def test_shards_without_an_index_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        safetensors.torch.save_file({name: torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(InvalidEvent, match="2 safetensors files"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("cut", [0, 5, 40, -1])
def test_a_torn_file_is_refused_by_its_name(tmp_path: Path, cut: int) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "in.safetensors")
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes((tmp_path / "in.safetensors").read_bytes()[:cut])
    with pytest.raises(InvalidEvent, match=r"torn\.safetensors is not a whole safetensors file"):
        read_checkpoint(torn)


def test_a_write_that_fails_leaves_the_file_of_before(tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    write_checkpoint(path, {"a": np.ones(2)}, {})
    before = path.read_bytes()

    def fail(nbytes: int) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_checkpoint(path, {"a": np.zeros(2)}, {}, fail)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["out.safetensors"]


def test_a_dtype_that_the_format_lacks_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidEvent, match="complex128") as caught:
        write_checkpoint(tmp_path / "out.safetensors", {"a": np.ones(2, dtype=np.complex128)}, {})
    assert caught.value.item == "a"
    assert list(tmp_path.iterdir()) == []
