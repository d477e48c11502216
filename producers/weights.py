"""Dense weights as events: a module or mapping becomes chunks, parts and a commit.

Names are opaque UTF-8: `"."`, `".."`, `"__metadata__"` or `"__meta"` are names like any other and make the full round trip;
only the empty name, names over 512 bytes and names that are not valid UTF-8 are refused. Values travel, not memory: every
tensor goes as its logical row-major bytes, whatever strides it had. Tensors that share their storage, offset, shape,
strides and dtype are *tied*, and travel once; a tensor without bytes is never tied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import InvalidEvent, SchemaMismatch
from ..events.arrays import is_torch, row_major
from ..events.digest import tensor_digest
from ..events.kinds import Chunk, Part, Segment, TensorSpec
from ..events.limits import MAX_CHUNK_BYTES
from ..events.tensors import Tensor

CHUNK_META_BYTES = 32 * 1024
"""What the names of a chunk's segments may take: with the bulk and two vectors the event stays under its limit."""

PART_META_BYTES = 256 * 1024
"""About what the tensors of one part event take."""

_SEGMENT_BYTES = 24
_SPEC_BYTES = 96


@dataclass(frozen=True, slots=True)
class Group:
    """A tensor whose bytes travel, under the name `carrier.name`, and the names tied to it."""

    carrier: Tensor
    tied: tuple[str, ...] = ()


def group_tensors(tensors: Mapping[str, Tensor], schema: Sequence[TensorSpec] | None) -> list[Group]:
    """Which tensors travel, and which names are tied to them.

    With a schema its ties count: a tied name may be left out, and tied tensors that are both given must agree bit for bit
    (`InvalidEvent`). Without one, shared storage says what is tied. Raises `SchemaMismatch` where names, shapes or dtypes
    differ from the schema's.
    """
    if schema is None:
        return _groups_by_storage(tensors)
    _check_known(tensors, schema)
    members: dict[str, list[str]] = {}
    for spec in schema:
        members.setdefault(spec.tied_to or spec.name, []).append(spec.name)
    missing = [name for name, group in members.items() if not any(member in tensors for member in group)]
    if missing:
        raise SchemaMismatch(
            f"{len(missing)} of the topic's tensors are missing, the first is {missing[0]!r}",
            item=missing[0],
            remedy='A version is the whole set; say schema="replace" to change it',
        )
    return [_group_of(name, group, tensors) for name, group in members.items()]


def group_part(tensors: Mapping[str, Tensor], schema: Sequence[TensorSpec] | None) -> list[Group]:
    """As `group_tensors`, for one rank's part of a version: only the names given travel, and only those that the schema has
    are checked. What is missing, tied to a name of another rank, or new is the commit's to judge.
    """
    if schema is None:
        return _groups_by_storage(tensors)
    known = {spec.name: spec.tied_to or spec.name for spec in schema}
    given = {name: tensor for name, tensor in tensors.items() if name in known}
    _check_known(given, schema)
    members: dict[str, list[str]] = {}
    for name in given:
        members.setdefault(known[name], []).append(name)
    groups = [_group_of(group[0], group, given) for group in members.values()]
    return groups + _groups_by_storage({name: tensor for name, tensor in tensors.items() if name not in known})


def cut(
    version: int, groups: Iterable[Group], digests: dict[str, bytes]
) -> Iterator[tuple[Chunk, tuple[memoryview, ...]]]:
    """The chunks of a publish, one by one: small tensors share a chunk, large ones are cut. Fills in `digests` by name.

    The bulk is the tensors' own memory (or a copy of one tensor that is not row-major): whoever sends it copies it.
    """
    segments: list[Segment] = []
    pieces: list[memoryview] = []
    room, meta_room = MAX_CHUNK_BYTES, CHUNK_META_BYTES
    for group in groups:
        tensor = group.carrier
        data = row_major(tensor.name, tensor.value)
        digests[tensor.name] = tensor_digest(data)
        meta_nbytes = len(tensor.name.encode()) + _SEGMENT_BYTES
        at = 0
        while at < len(data):
            if not room or meta_room < meta_nbytes:
                yield Chunk(version, tuple(segments)), tuple(pieces)
                segments, pieces = [], []
                room, meta_room = MAX_CHUNK_BYTES, CHUNK_META_BYTES
            piece = data[at : at + room]
            segments.append(Segment(tensor.name, at, len(piece)))
            pieces.append(piece)
            at += len(piece)
            room -= len(piece)
            meta_room -= meta_nbytes
    if segments:
        yield Chunk(version, tuple(segments)), tuple(pieces)


def specs_of(
    group: Group, digests: Mapping[str, bytes], chunks: Mapping[str, tuple[int, int]]
) -> tuple[TensorSpec, ...]:
    """The specs of a group: what travelled first, then what is tied to it."""
    tensor, digest = group.carrier, digests[group.carrier.name]
    first, last = chunks.get(tensor.name, (0, 0))
    carrier = TensorSpec(tensor.name, tensor.dtype, tensor.shape, digest, tensor.nbytes, first, last)
    tied = (
        TensorSpec(name, tensor.dtype, tensor.shape, digest, tensor.nbytes, tied_to=tensor.name) for name in group.tied
    )
    return carrier, *tied


def parts_of(version: int, specs: Iterable[tuple[TensorSpec, ...]]) -> Iterator[Part]:
    """As many parts as the tensors need; a tied tensor is in the part of the one it is tied to."""
    held: list[TensorSpec] = []
    room = PART_META_BYTES
    for group in specs:
        nbytes = sum(len(s.name.encode()) + len(s.tied_to.encode()) + 9 * len(s.shape) + _SPEC_BYTES for s in group)
        if held and nbytes > room:
            yield Part(version, tuple(held))
            held, room = [], PART_META_BYTES
        held.extend(group)
        room -= nbytes
    if held:
        yield Part(version, tuple(held))


def segment_meta_nbytes(chunk: Chunk) -> int:
    return sum(len(segment.name.encode()) + _SEGMENT_BYTES for segment in chunk.segments)


def part_meta_nbytes(part: Part) -> int:
    return sum(len(s.name.encode()) + len(s.tied_to.encode()) + 9 * len(s.shape) + _SPEC_BYTES for s in part.tensors)


def _groups_by_storage(tensors: Mapping[str, Tensor]) -> list[Group]:
    carriers: dict[object, str] = {}
    tied: dict[str, list[str]] = {}
    for tensor in tensors.values():
        carrier = carriers.setdefault(_storage_key(tensor), tensor.name)
        if carrier == tensor.name:
            tied[carrier] = []
        else:
            tied[carrier].append(tensor.name)
    return [Group(tensors[name], tuple(names)) for name, names in tied.items()]


def _storage_key(tensor: Tensor) -> object:
    """Equal for tensors that are the same memory seen the same way. Without bytes there is no memory to share."""
    value = tensor.value
    if not tensor.nbytes:
        return tensor.name
    if is_torch(value):
        flags = (value.is_conj(), value.is_neg())
        return "torch", str(value.device), value.data_ptr(), tensor.shape, value.stride(), tensor.dtype, flags
    address = value.__array_interface__["data"][0] if hasattr(value, "__array_interface__") else id(value)
    return "numpy", address, tensor.shape, getattr(value, "strides", ()), str(value.dtype)


def _check_known(tensors: Mapping[str, Tensor], schema: Sequence[TensorSpec]) -> None:
    known = {spec.name: spec for spec in schema}
    for tensor in tensors.values():
        spec = known.get(tensor.name)
        remedy = 'Say schema="replace" if names, shapes or dtypes are meant to change'
        if spec is None:
            raise SchemaMismatch("the topic's schema has no such tensor", item=tensor.name, remedy=remedy)
        if (tensor.dtype, tensor.shape) != (spec.dtype, tuple(spec.shape)):
            raise SchemaMismatch(
                f"the tensor is {tensor.dtype} {tensor.shape}, the topic's schema says {spec.dtype} {tuple(spec.shape)}",
                item=tensor.name,
                remedy=remedy,
            )


def _group_of(name: str, members: Sequence[str], tensors: Mapping[str, Tensor]) -> Group:
    """The group that the schema ties to `name`: given members must agree; what is left out takes the given value."""
    given = [tensors[member] for member in members if member in tensors]
    first = tensors.get(name, given[0])
    for other in given:
        if other is first or _storage_key(other) == _storage_key(first):
            continue
        if row_major(other.name, other.value) != row_major(first.name, first.value):
            raise InvalidEvent(
                f"the tensors {first.name!r} and {other.name!r} are tied and disagree",
                item=other.name,
                remedy='Publish one of them, or say schema="replace" to untie them',
            )
    carrier = Tensor(name, first.dtype, first.shape, first.value)
    return Group(carrier, tuple(member for member in members if member != name))
