"""One sealed version in a safetensors file that other tools read: each tensor under its own name, tied ones once."""

from __future__ import annotations

from collections.abc import Iterator

from ...consistency.vector import VersionVector
from ...errors import CorruptLog, StorageFull
from ...events.digest import tensor_digest, version_digest
from ...events.kinds import TensorSpec
from ...events.manifest import FileRecord, SealedRecord, TensorRecord, positions_of, vector_of
from ...events.tensorfile import METADATA, TAG_OF_DTYPE, decode_header, encode_header, in_file_order
from ...tiers.dense import Extent, lay_out
from ...tiers.store import TieredStore
from ..versions import Sealed

Shape = tuple[str, tuple[int, ...]]


def stored_names(sealed: Sealed) -> dict[str, str]:
    """Tensor → its name in the file. A name that the format has for itself gets underscores until it is free."""
    stored: dict[str, str] = {}
    for name, spec in sealed.specs.items():
        if not spec.tied_to:
            stored[name] = name
            while stored[name] == METADATA or (stored[name] != name and stored[name] in sealed.specs):
                stored[name] += "_"
    return stored


def pieces_of(sealed: Sealed, topic: str) -> Iterator[bytes | memoryview]:
    """The file of a version that the caller holds. Nothing is copied; one that lies on SSD comes back to DRAM for it, with the errors of
    `DenseVersion.readonly_buffer`.
    """
    stored = stored_names(sealed)
    described = {stored[name]: _in_file(sealed.specs[name]) for name in stored}
    names = {held: name for name, held in stored.items()}
    order = in_file_order(described)
    about = {"format": "pt", "topic": topic, "version": str(sealed.version), "digest": sealed.digest}
    header, _ = encode_header({name: described[name] for name in order}, about)
    yield header
    buffer = sealed.dense.readonly_buffer()
    for name in order:
        at = sealed.dense.extents[names[name]]
        yield buffer[at.offset : at.offset + at.nbytes]


def record_of(sealed: Sealed, file: FileRecord) -> SealedRecord:
    """What the manifest says of the version that `pieces_of` wrote to `file`."""
    stored = stored_names(sealed)
    tensors = tuple(
        TensorRecord(name, spec.dtype, spec.shape, spec.nbytes, spec.digest.hex(), stored.get(name, ""), spec.tied_to)
        for name, spec in sealed.specs.items()
    )
    return SealedRecord(
        version=sealed.version,
        position=sealed.position,
        digest=sealed.digest,
        rewind=sealed.rewind,
        first=sealed.first,
        time=sealed.time,
        needs=positions_of(sealed.needs),
        vector=positions_of(sealed.vector),
        tensors=tensors,
        file=file,
    )


def load(record: SealedRecord, data: memoryview, place: str, store: TieredStore) -> Sealed:
    """The version in a slot of `store`, every tensor proved by its digest. The caller has the one reference to it.

    Raises `CorruptLog` naming `place` and the tensor, `StorageFull`.
    """
    specs = {tensor.name: tensor.spec() for tensor in record.tensors}
    if version_digest(specs.values()).hex() != record.digest:
        raise CorruptLog(f"the tensors of {place} are not those of the version", item=place, version=record.version)
    found = decode_header(data, place)
    for tensor in record.tensors:
        at = found.get(tensor.stored)
        if not tensor.tied_to and tensor.nbytes != (at.end - at.start if at is not None else 0):
            raise CorruptLog(f"{place} does not hold tensor {tensor.name!r}", item=tensor.name)
    extents, nbytes = lay_out({name: spec.nbytes for name, spec in specs.items() if not spec.tied_to})
    slot = store.allocate(nbytes)
    try:
        for tensor in record.tensors:
            if not tensor.tied_to:
                at = found.get(tensor.stored)
                piece = data[at.start : at.end] if at is not None else data[:0]
                if tensor_digest(piece).hex() != tensor.digest:
                    raise CorruptLog(f"{place} does not hold the bytes of tensor {tensor.name!r}", item=tensor.name)
                slot.write(piece, extents[tensor.name].offset)
    except (CorruptLog, StorageFull):
        slot.release()
        raise
    placed: dict[str, Extent] = {name: extents[spec.tied_to or name] for name, spec in specs.items()}
    dense = store.seal(record.version, record.position, bytes.fromhex(record.digest), placed, slot)
    needs: VersionVector[int] = vector_of(record.needs)
    return Sealed(dense, specs, vector_of(record.vector), record.rewind, record.first, record.time, needs)


def _in_file(spec: TensorSpec) -> Shape:
    """As what the format holds it: bytes, where it has no such dtype."""
    return (spec.dtype, spec.shape) if spec.dtype in TAG_OF_DTYPE else ("uint8", (spec.nbytes,))
