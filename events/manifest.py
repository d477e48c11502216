"""What a snapshot says of itself: the manifest of its files, and what they are the state of.

A manifest is JSON: `{"digest": …, "manifest": {…}}`, where the digest is of the bytes of the inner object, so that one flipped
bit anywhere is seen. It names each file with its bytes and digest: whoever has the digest of a manifest can prove everything.
"""

from __future__ import annotations

import re

import msgspec
import xxhash

from ..consistency.vector import VersionVector
from ..errors import CorruptLog, InvalidEvent
from .arrays import nbytes_of
from .digest import DIGEST_BYTES
from .kinds import Table, TensorSpec
from .validate import check_table

FORMAT = 2
"""Format 1 knew no rows: see `_without_passed_over`."""

NAME = "manifest.json"

MAX_MANIFEST_BYTES = 256 * 1024 * 1024
"""More than any topic needs: a file that says more is none."""

_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\.safetensors")

Positions = tuple[tuple[int, int, int], ...]
"""A vector: (topic id, partition, position)."""


class Record(msgspec.Struct, frozen=True):
    """A part of a manifest. Fields are only added, with defaults, so that neighbouring releases read each other's."""


class FileRecord(Record, frozen=True):
    name: str
    """Of a file beside the manifest: never a path."""
    nbytes: int
    digest: str
    """xxh3_128 of all its bytes, 32 hexadecimal digits."""


class TensorRecord(Record, frozen=True):
    """One tensor of the weights; of a tied one the bytes are those of another."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str
    stored: str = ""
    """Its name in the file: the same, but where safetensors has that name for itself. Empty: the file does not hold it."""
    tied_to: str = ""

    def spec(self) -> TensorSpec:
        return TensorSpec(
            self.name, self.dtype, self.shape, bytes.fromhex(self.digest), self.nbytes, tied_to=self.tied_to
        )


class SealedRecord(Record, frozen=True):
    """The version of the weights that the snapshot holds, as it was sealed."""

    version: int
    position: int
    """Of its commit."""
    digest: str
    rewind: bool
    first: int
    """The position of the first event that it was made from."""
    time: int
    """When it was sequenced, ns since 1970."""
    needs: Positions
    vector: Positions
    tensors: tuple[TensorRecord, ...]
    file: FileRecord


class WeightsRecord(Record, frozen=True):
    """The weight partition: everything up to `ceiling` is in `sealed`, or superseded, or stands open in the log."""

    number: int
    floor: int
    """A later commit may name parts that stand behind this position, and no earlier ones."""
    ceiling: int
    sealed: SealedRecord | None = None


class TableRecord(Record, frozen=True):
    """A table of rows as it was defined at the floor, and its rows as they were copied."""

    definition: Table
    position: int
    """Of the event that last defined it."""
    kind_position: int
    """Of the event from which on its optimizer is of its kind: its rows' state is of that kind."""
    rows: int
    files: tuple[FileRecord, ...] = ()


class StateRecord(Record, frozen=True):
    """A state partition: copied while it moved from `floor` to `ceiling`; with the log behind `floor` it is whole from
    `ceiling` on.
    """

    number: int
    floor: int
    ceiling: int
    entries: int
    files: tuple[FileRecord, ...] = ()
    """Of entries."""
    tables: tuple[TableRecord, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.entries and not any(table.rows for table in self.tables)

    def all_files(self) -> list[FileRecord]:
        """Every file of the partition: those of its entries first, then those of its tables. Keepers number them so."""
        return [*self.files, *(file for table in self.tables for file in table.files)]


class Manifest(Record, frozen=True):
    """One topic's snapshot."""

    topic: str
    topic_id: int
    partitions: int
    persistence: str
    retain_versions: int
    number: int
    """Grows from snapshot to snapshot of a folder."""
    time: int
    """When it was finished, ns since 1970 by the clock of whoever made it."""
    replica: str
    context: Positions
    """The closed vector of all that the state rests on."""
    state: tuple[StateRecord, ...]
    weights: WeightsRecord
    format: int = FORMAT

    def files(self) -> list[FileRecord]:
        """Every file of the snapshot beside the manifest."""
        found = [file for state in self.state for file in state.all_files()]
        return found if self.weights.sealed is None else [*found, self.weights.sealed.file]

    def spans(self) -> dict[int, tuple[int, int]]:
        """Partition → (floor, ceiling), the weights' too."""
        spans = {state.number: (state.floor, state.ceiling) for state in self.state}
        return spans | {self.weights.number: (self.weights.floor, self.weights.ceiling)}

    def state_of(self, number: int) -> StateRecord | None:
        return next((state for state in self.state if state.number == number), None)


class _Envelope(msgspec.Struct, frozen=True):
    digest: str
    manifest: msgspec.Raw


def encode_manifest(manifest: Manifest) -> tuple[bytes, str]:
    """The bytes of the file, and the digest that names this very manifest."""
    inner = msgspec.json.format(msgspec.json.encode(manifest), indent=0)
    digest = digest_of(inner)
    return b'{"digest":"' + digest.encode() + b'","manifest":' + inner + b"}\n", digest


def decode_manifest(data: bytes, place: str) -> tuple[Manifest, str]:
    """The manifest and its digest. Raises `CorruptLog` that names `place` for anything that `encode_manifest` did not write."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if digest_of(bytes(envelope.manifest)) != envelope.digest:
            raise CorruptLog(f"{place} is damaged: its digest does not match its bytes", item=place)
        version = msgspec.json.decode(envelope.manifest, type=_Format).format
        if not 1 <= version <= FORMAT:
            raise CorruptLog(
                f"{place} has format {version}, this reader knows up to {FORMAT}", item=place, remedy="Upgrade it"
            )
        manifest = msgspec.json.decode(envelope.manifest, type=Manifest)
        if version == 1:
            manifest = _without_passed_over(manifest, msgspec.json.decode(envelope.manifest, type=_First))
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptLog(f"{place} is no manifest of a snapshot: {error}", item=place) from error
    _check(manifest, place)
    return manifest, envelope.digest


def digest_of(data: bytes | memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def positions_of(vector: VersionVector[int]) -> Positions:
    """Sorted, so that equal vectors are written alike."""
    return tuple(sorted((topic, number, at) for (topic, number), at in vector.items()))


def vector_of(positions: Positions) -> VersionVector[int]:
    return VersionVector({(topic, number): at for topic, number, at in positions})


class _Format(msgspec.Struct, frozen=True):
    format: int


class _FirstState(msgspec.Struct, frozen=True):
    number: int
    skipped: int = 0


class _First(msgspec.Struct, frozen=True):
    """What format 1 said besides."""

    state: tuple[_FirstState, ...]


def _without_passed_over(manifest: Manifest, first: _First) -> Manifest:
    """A maker of format 1 passed over events of tables. Where there were any its copy lacks their rows, and was announced by nobody:
    the partition's log is whole, and whoever reads begins there.
    """
    lacking = {state.number for state in first.state if state.skipped}
    state = tuple(state for state in manifest.state if state.number not in lacking)
    return msgspec.structs.replace(manifest, state=state)


def _check(manifest: Manifest, place: str) -> None:
    """What is written by somebody else is believed only where it hangs together."""
    problem = _problem_of_partitions(manifest) or _problem_of_numbers(manifest) or _problem_of_tables(manifest)
    problem = problem or next((each for file in manifest.files() if (each := _problem_of(file))), "")
    if not problem and manifest.weights.sealed is not None:
        problem = _problem_of_tensors(manifest.weights.sealed.tensors)
    if problem:
        raise CorruptLog(f"{place} does not hold together: {problem}", item=place)


def _problem_of_partitions(manifest: Manifest) -> str:
    numbers = [state.number for state in manifest.state]
    if manifest.weights.number != manifest.partitions or len(set(numbers)) != len(numbers):
        return "it names partitions twice"
    if any(not 0 <= number < manifest.partitions for number in numbers):
        return "it names partitions that its topic does not have"
    if any(floor > ceiling for floor, ceiling in manifest.spans().values()):
        return "a ceiling lies below its floor"
    return ""


def _problem_of_numbers(manifest: Manifest) -> str:
    """JSON's whole numbers may be of any size; positions and ids are not."""
    sealed, vectors = manifest.weights.sealed, [manifest.context]
    tables = [table for state in manifest.state for table in state.tables]
    positions = [manifest.topic_id, *(at for span in manifest.spans().values() for at in span)]
    positions += [at for table in tables for at in (table.position, table.kind_position)]
    times = [manifest.time, manifest.number, *(table.rows for table in tables)]
    if sealed is not None:
        vectors += [sealed.needs, sealed.vector]
        positions += [sealed.position, sealed.first]
        times += [sealed.time, sealed.version]
    for vector in vectors:
        positions += [each for topic, _, at in vector for each in (topic, at)]
    numbers = [manifest.partitions, *(number for vector in vectors for _, number, _ in vector)]
    for values, bits in ((positions, 64), (times, 63), (numbers, 32)):
        wrong = next((value for value in values if not 0 <= value < 1 << bits), None)
        if wrong is not None:
            return f"{wrong} is no number of {bits} bits"
    return ""


def _problem_of_tables(manifest: Manifest) -> str:
    for state in manifest.state:
        names = [table.definition.table for table in state.tables]
        if len(set(names)) != len(names):
            return "it names a table twice"
        for table in state.tables:
            try:
                check_table(table.definition)
            except InvalidEvent as error:
                return f"table {table.definition.table!r}: {error.problem}"
            if not table.kind_position <= table.position <= state.floor or table.rows < 0:
                return f"positions or rows of table {table.definition.table!r} are none"
    return ""


def _problem_of_tensors(tensors: tuple[TensorRecord, ...]) -> str:
    specs = {tensor.name: tensor for tensor in tensors}
    if len(specs) != len(tensors):
        return "it names a tensor twice"
    for tensor in tensors:
        if not _is_digest(tensor.digest):
            return "a tensor's digest is none"
        try:
            nbytes = nbytes_of(tensor.dtype, tensor.shape)
        except InvalidEvent as error:
            return f"tensor {tensor.name!r}: {error.problem}"
        tied_to = specs.get(tensor.tied_to) if tensor.tied_to else tensor
        values = tensor.dtype, tensor.shape, tensor.digest
        if nbytes != tensor.nbytes:
            return f"tensor {tensor.name!r} does not have {tensor.nbytes} bytes"
        if tied_to is None or (tensor.tied_to and tied_to.tied_to) or values != (
            tied_to.dtype, tied_to.shape, tied_to.digest
        ):  # fmt: skip
            return f"tensor {tensor.name!r} is tied to {tensor.tied_to!r}, which is not there with the same values"
    return ""


def _problem_of(file: FileRecord) -> str:
    if not _FILE_NAME.fullmatch(file.name):
        return f"{file.name!r} is not the name of a file of a snapshot"
    return "" if file.nbytes >= 0 and _is_digest(file.digest) else f"bytes or digest of {file.name!r} are none"


def _is_digest(text: str) -> bool:
    return re.fullmatch(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}", text) is not None
