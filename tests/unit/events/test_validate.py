"""A payload must be whole: what its meta says, its bulk has."""

from __future__ import annotations

import pytest

from paramstream.errors import InvalidEvent
from paramstream.events.digest import key_hash, partition_of
from paramstream.events.kinds import (
    Chunk,
    Commit,
    Delete,
    DeleteRows,
    DenseGradients,
    GradientPiece,
    Gradients,
    Part,
    PartRef,
    Payload,
    Put,
    PutItem,
    Rows,
    Segment,
    Table,
    TensorSpec,
)
from paramstream.events.limits import (
    MAX_KEY_BYTES,
    MAX_NAME_BYTES,
    MAX_TTL_NS,
    MAX_VALUE_BYTES,
    check_name,
    check_version,
)
from paramstream.events.validate import check_payload, put_values

DIGEST = bytes(16)


def _piece(offset: int, nbytes: int, shape: tuple[int, ...] = (4,)) -> GradientPiece:
    return GradientPiece("w", "float32", shape, DIGEST, offset, nbytes)


WHOLE: list[tuple[Payload, int]] = [
    (Chunk(1, (Segment("w", 0, 5), Segment("v", 8, 3))), 8),
    (Part(1, (TensorSpec("w", "float32", (2,), DIGEST, 8, 1, 1),)), 0),
    (Commit(1, (PartRef("p", 1, 2),), DIGEST), 0),
    (Table("t", 4, "float32"), 0),
    (Rows("t", 2, 4, "float32"), 2 * 8 + 2 * 16),
    (Gradients("t", 0, 4, "float32"), 0),
    (DenseGradients(1, 0, 2, (_piece(8, 8), _piece(0, 0, (0, 9)))), 8),
    (DeleteRows("t", 3), 24),
    (DeleteRows("t", 1, up_to=(1 << 64) - 1), 8),
    (Put((PutItem(b"a", 2), PutItem(b"b", 0, ttl_ns=1))), 2),
    (Delete((b"a",)), 0),
]

BROKEN: list[tuple[Payload, int]] = [
    (Chunk(-1, ()), 0),
    (Chunk(1, (Segment("", 0, 5),)), 5),
    (Chunk(1, (Segment("w", -1, 5),)), 5),
    (Part(1, (TensorSpec("w", "float32", (2,), DIGEST, 9, 1, 1),)), 0),
    (Part(1, (TensorSpec("w", "float33", (2,), DIGEST, 8, 1, 1),)), 0),
    (Part(1, (TensorSpec("w", "float32", (2,), b"short", 8, 1, 1),)), 0),
    (Part(1, (TensorSpec("w", "float32", (2,), DIGEST, 8, 3, 2),)), 0),
    (Commit(1, (), DIGEST), 0),
    (Commit(1, (PartRef("p", 1, 2),), DIGEST, schema="other"), 0),
    (Table("t", 0, "float32"), 0),
    (Rows("t", -1, 4, "float32"), 0),
    (DenseGradients(-1, 0, 1, (_piece(0, 8),)), 8),
    (DenseGradients(1, 1, 1, (_piece(0, 8),)), 8),
    (DenseGradients(1, -1, 1, (_piece(0, 8),)), 8),
    (DenseGradients(1, 0, 1, ()), 0),
    (DenseGradients(1, 0, 1, (_piece(12, 8),)), 8),
    (DenseGradients(1, 0, 1, (_piece(-4, 8),)), 8),
    (DenseGradients(1, 0, 1, (_piece(2, 8),)), 8),
    (DenseGradients(1, 0, 1, (_piece(0, 6),)), 6),
    (DenseGradients(1, 0, 1, (_piece(0, -4), _piece(0, 8))), 4),
    (DenseGradients(1, 0, 1, (GradientPiece("", "float32", (2,), DIGEST, 0, 8),)), 8),
    (DenseGradients(1, 0, 1, (GradientPiece("w", "float32", (2,), b"short", 0, 8),)), 8),
    (DeleteRows("t", 1, up_to=-1), 8),
    (DeleteRows("t", 1, up_to=1 << 64), 8),
    (Put((PutItem(b"", 0),)), 0),
    (Put((PutItem(b"k" * (MAX_KEY_BYTES + 1), 0),)), 0),
    (Put((PutItem(b"k", MAX_VALUE_BYTES + 1),)), MAX_VALUE_BYTES + 1),
    (Put((PutItem(b"k", 0, ttl_ns=0),)), 0),
    (Put((PutItem(b"k", 0, ttl_ns=MAX_TTL_NS + 1),)), 0),
    (Delete((b"",)), 0),
]


@pytest.mark.parametrize(("payload", "bulk_nbytes"), WHOLE)
def test_a_whole_payload_passes_and_one_byte_more_does_not(payload: Payload, bulk_nbytes: int) -> None:
    check_payload(payload, bulk_nbytes)
    with pytest.raises(InvalidEvent):
        check_payload(payload, bulk_nbytes + 1)


@pytest.mark.parametrize(("payload", "bulk_nbytes"), BROKEN)
def test_a_broken_payload_is_refused(payload: Payload, bulk_nbytes: int) -> None:
    with pytest.raises(InvalidEvent):
        check_payload(payload, bulk_nbytes)


def test_the_values_of_a_put_are_the_pieces_of_its_bulk() -> None:
    put = Put((PutItem(b"a", 2), PutItem(b"b", 0), PutItem(b"c", 1)))
    assert [(item.key, bytes(value)) for item, value in put_values(put, memoryview(b"xyz"))] == [
        (b"a", b"xy"),
        (b"b", b""),
        (b"c", b"z"),
    ]


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_BYTES + 1), "\ud800", 3, None])
def test_an_unusable_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidEvent):
        check_name("topic", name)


@pytest.mark.parametrize("name", ["__metadata__", ".", "..", "__meta", "a/b", "a b", "ü", "x" * MAX_NAME_BYTES])
def test_names_are_opaque_B03(name: str) -> None:
    assert check_name("tensor", name) == name


@pytest.mark.parametrize("version", [-1, 2**63, 1.0, "1", True])
def test_an_unusable_version_is_refused(version: object) -> None:
    with pytest.raises(InvalidEvent):
        check_version(version)


def test_the_partition_of_a_key_is_pinned_for_ever() -> None:
    assert [key_hash(key) for key in (b"", b"a", b"user:1")] == [
        3244421341483603138,
        16629034431890738719,
        4276021600403166465,
    ]
    assert [partition_of(f"key-{n}".encode(), 4) for n in range(8)] == PINNED


PINNED = [0, 1, 0, 2, 3, 0, 2, 3]
