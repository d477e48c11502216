"""Modules and mappings as tensors, groups, chunks and parts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from paramstream.errors import InvalidEvent, SchemaMismatch
from paramstream.events.arrays import as_numpy
from paramstream.events.digest import tensor_digest
from paramstream.events.kinds import Chunk, TensorSpec
from paramstream.events.limits import MAX_CHUNK_BYTES
from paramstream.events.tensors import Tensor, describe_tensors
from paramstream.producers.weights import (
    Group,
    cut,
    group_tensors,
    parts_of,
    specs_of,
)


def chunks_of(source: object) -> tuple[list[Chunk], dict[str, bytes], dict[str, bytes]]:
    """(chunks, the bytes put together by name, digests)."""
    tensors = describe_tensors(source)
    digests: dict[str, bytes] = {}
    chunks: list[Chunk] = []
    joined: dict[str, bytearray] = {name: bytearray() for name in tensors}
    for chunk, bulk in cut(1, group_tensors(tensors, None), digests):
        chunks.append(chunk)
        assert sum(len(piece) for piece in bulk) <= MAX_CHUNK_BYTES
        for segment, piece in zip(chunk.segments, bulk, strict=True):
            assert (len(joined[segment.name]), len(piece)) == (segment.offset, segment.nbytes)
            joined[segment.name] += piece
    return chunks, {name: bytes(data) for name, data in joined.items()}, digests


def travel(value: Any) -> Any:
    """What a replica without torch makes of the bytes of one tensor."""
    tensor = describe_tensors({"w": value})["w"]
    _, joined, digests = chunks_of({"w": value})
    assert digests["w"] == tensor_digest(joined["w"])
    return as_numpy(joined["w"], tensor.dtype, tensor.shape)


def schema(*specs: tuple[str, str, tuple[int, ...], str]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name, dtype, shape, b"", int(np.prod(shape)) * 4, tied_to=tied) for name, dtype, shape, tied in specs
    )


def test_strided_view_arrives_as_its_logical_values_A01() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected = [[0, 2, 4], [6, 8, 10], [12, 14, 16], [18, 20, 22]]
    assert travel(base[:, ::2]).tolist() == expected
    assert travel(torch.arange(24.0).reshape(4, 6)[:, ::2]).tolist() == expected
    assert base.ravel().tolist() == list(range(24))


def test_column_major_array_arrives_row_by_row_A03() -> None:
    assert travel(np.asfortranarray([[11, 12, 13], [21, 22, 23]])).tolist() == [[11, 12, 13], [21, 22, 23]]


def test_tensors_without_bytes_are_no_aliases_of_each_other_A04() -> None:
    shapes = {"a": (0,), "b": (0,), "c": (0, 16), "d": (4, 0)}
    source = {name: np.empty(shape, np.float32) for name, shape in shapes.items()} | {"e": np.array([1, 2], np.float32)}
    groups = group_tensors(describe_tensors(source), None)
    assert [(group.carrier.name, group.carrier.shape, group.tied) for group in groups[:4]] == [
        (name, shape, ()) for name, shape in shapes.items()
    ]
    empty = torch.empty(0)
    assert all(not group.tied for group in group_tensors(describe_tensors({"a": empty, "b": empty}), None))


@pytest.mark.parametrize("value", [np.float32(3.5), np.array(3.5), torch.tensor(3.5), torch.tensor(7)])
def test_a_value_without_dimensions_keeps_its_shape_A06(value: Any) -> None:
    arrived = travel(value)
    assert arrived.shape == ()
    assert arrived == float(value)


def test_bf16_travels_as_the_same_bits_A07() -> None:
    value = torch.tensor([1.0, 3.39e38, 1e-38, -0.0, float("nan"), float("inf")], dtype=torch.bfloat16)
    arrived = travel(value)
    assert arrived.dtype == ml_dtypes.bfloat16
    assert arrived.view(np.uint16).tolist() == value.view(torch.int16).numpy().view(np.uint16).tolist()


def test_fp8_travels_as_the_same_bits() -> None:
    value = torch.tensor([1.0, -2.0, 448.0]).to(torch.float8_e4m3fn)
    assert travel(value).view(np.uint8).tolist() == value.view(torch.uint8).tolist()


def test_a_module_gives_its_parameters_and_buffers() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    names = describe_tensors(module)
    assert {"0.weight", "0.bias", "1.running_mean", "1.num_batches_tracked"} <= set(names)
    assert names["1.num_batches_tracked"].shape == ()


def test_nested_mappings_get_dotted_names() -> None:
    assert list(describe_tensors({"a": {"b": np.ones(1), "c": {"d": np.ones(1)}}})) == ["a.b", "a.c.d"]


def test_names_that_flatten_to_one_are_refused_with_both_origins_B04() -> None:
    with pytest.raises(InvalidEvent, match=r"'a\.b'.*\['a'\]\['b'\] and \['a\.b'\]"):
        describe_tensors({"a": {"b": np.ones(1)}, "a.b": np.ones(1)})


@pytest.mark.parametrize("name", ["__metadata__", "__manifest__", ".", "..", "__meta", "../x", "ü/ä" * 40])
def test_odd_names_travel_as_they_are_B03(name: str) -> None:
    chunks, joined, _ = chunks_of({name: np.ones(1)})
    assert chunks[0].segments[0].name == name and len(joined[name]) == 8


@pytest.mark.parametrize("name", ["", "x" * 513, "\ud800"])
def test_names_that_cannot_travel_are_refused_B03(name: str) -> None:
    with pytest.raises(InvalidEvent):
        describe_tensors({name: np.ones(1)})


@pytest.mark.parametrize(
    "source",
    [{}, {"a": "text"}, {"a": [1.0]}, {1: np.ones(1)}, {"a": np.array(["x"])}, 5, {"a": torch.ones(2).to_sparse()}],
)
def test_what_is_no_set_of_dense_arrays_is_refused(source: object) -> None:
    with pytest.raises(InvalidEvent):
        describe_tensors(source)


def test_a_sharded_tensor_is_refused_with_the_recipe_to_gather_it() -> None:
    class Sharded(torch.Tensor):
        def full_tensor(self) -> torch.Tensor:
            return torch.Tensor(self)

    with pytest.raises(InvalidEvent, match=r"full_tensor\(\)"):
        describe_tensors({"w": torch.ones(2).as_subclass(Sharded)})


def test_small_tensors_share_a_chunk_and_large_ones_are_cut_C06() -> None:
    source = {"large": np.zeros(3 * 1024 * 1024, np.uint8)} | {
        f"small{n}": np.full(10 * 1024, n, np.uint8) for n in range(17)
    }
    chunks, joined, _ = chunks_of(source)
    assert len(chunks) == -(-(3 * 1024 * 1024 + 17 * 10 * 1024) // MAX_CHUNK_BYTES)
    assert joined["small16"] == bytes([16]) * 10 * 1024


def test_a_chunk_of_many_small_tensors_with_long_names_stays_within_its_event() -> None:
    chunks, _, _ = chunks_of({f"{n:04}" + "x" * 508: np.ones(1, np.uint8) for n in range(200)})
    assert len(chunks) > 1
    assert max(len(chunk.segments) for chunk in chunks) * 512 <= 32 * 1024


def test_tensors_of_one_storage_are_tied_and_their_views_are_not() -> None:
    w = torch.ones(4, 4)
    source = {"w": w, "same": w, "turned": w.t(), "part": w[:2], "other": torch.ones(4, 4)}
    groups = {g.carrier.name: g.tied for g in group_tensors(describe_tensors(source), None)}
    assert groups == {"w": ("same",), "turned": (), "part": (), "other": ()}
    a = np.ones(3)
    assert [g.tied for g in group_tensors(describe_tensors({"a": a, "b": a, "c": a[:2]}), None)] == [("b",), ()]


def test_tied_parameters_of_a_module_travel_once() -> None:
    module = torch.nn.ModuleDict(
        {"embed": torch.nn.Linear(2, 2, bias=False), "head": torch.nn.Linear(2, 2, bias=False)}
    )
    module["head"].weight = module["embed"].weight
    [group] = group_tensors(describe_tensors(module), None)
    assert (group.carrier.name, group.tied) == ("embed.weight", ("head.weight",))


TIED = schema(("embed.w", "float32", (2,), ""), ("head.w", "float32", (2,), "embed.w"))


@pytest.mark.parametrize("given", [["embed.w"], ["head.w"], ["embed.w", "head.w"]])
def test_tied_tensors_may_be_left_out_or_given_equal_C01(given: list[str]) -> None:
    tensors = describe_tensors({name: np.ones(2, np.float32) for name in given})
    [group] = group_tensors(tensors, TIED)
    assert (group.carrier.name, group.tied) == ("embed.w", ("head.w",))


def test_tied_tensors_that_disagree_are_refused_C01() -> None:
    tensors = describe_tensors({"embed.w": np.array([1, 2], np.float32), "head.w": np.array([1, 3], np.float32)})
    with pytest.raises(InvalidEvent, match="disagree"):
        group_tensors(tensors, TIED)


def test_a_placeholder_shape_is_refused_with_both_shapes_A10() -> None:
    tensors = describe_tensors({"p": np.empty(0, np.float32)})
    with pytest.raises(SchemaMismatch, match=r"\(0,\).*\(8, 16\)"):
        group_tensors(tensors, schema(("p", "float32", (8, 16), "")))


@pytest.mark.parametrize(
    ("source", "item"),
    [({"a": np.ones(1)}, "a"), ({"a": np.ones(1, "f4"), "c": np.ones(1)}, "c"), ({"b": np.ones(1, "f4")}, "a")],
)
def test_other_names_or_dtypes_than_the_schema_says_are_refused(source: dict[str, Any], item: str) -> None:
    known = schema(("a", "float32", (1,), ""), ("b", "float32", (1,), ""))
    with pytest.raises(SchemaMismatch) as caught:
        group_tensors(describe_tensors(source), known)
    assert caught.value.item == item


def test_a_tied_tensor_is_in_the_part_of_the_one_it_is_tied_to() -> None:
    groups = [Group(Tensor(f"{n}" + "x" * 500, "uint8", (1,), None), ("y" * 500 + f"{n}",)) for n in range(1000)]
    digests = {group.carrier.name: bytes(16) for group in groups}
    parts = list(parts_of(1, (specs_of(group, digests, {}) for group in groups)))
    assert len(parts) > 2
    for part in parts:
        names = {spec.name for spec in part.tensors}
        assert all(spec.tied_to in names for spec in part.tensors if spec.tied_to)
    assert sum(len(part.tensors) for part in parts) == 2000
