"""The kinds of events and their payloads.

A payload has two parts: a small *meta* (the structs below, encoded as MessagePack arrays, so that a newer writer may add
fields at the end and an older reader passes over them) and a *bulk* of raw bytes (tensor bytes, values, keys and rows),
which is never parsed. Claims and bases are records of the log only; notes keep a log moving and carry nothing.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Kind(IntEnum):
    """The kind's number on the wire and in the log: never reused."""

    CHUNK = 1
    PART = 2
    COMMIT = 3
    TABLE = 4
    ROWS = 5
    DELETE_ROWS = 6
    GRADIENTS = 7
    PUT = 8
    DELETE = 9
    NOTE = 10
    CLAIM = 11
    EPOCH = 12
    BASE = 13
    DENSE_GRADIENTS = 14

    @property
    def label(self) -> str:
        """The name users see in `Event.kind`."""
        return self.name.lower()


class Payload(msgspec.Struct, array_like=True, frozen=True):
    """The meta of an event's payload."""


class Segment(Payload, frozen=True):
    """`nbytes` bytes of the tensor `name`, beginning at its byte `offset`. The segments of a chunk fill its bulk in order."""

    name: str
    offset: int
    nbytes: int


class Chunk(Payload, frozen=True):
    """Bulk: the bytes of its segments. Only stages; a part says what the bytes mean."""

    version: int
    segments: tuple[Segment, ...]


class TensorSpec(Payload, frozen=True):
    """One tensor of a version: logical row-major values of `shape` and `dtype` (a name of `arrays.DTYPES`)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: bytes
    """xxh3_128 of the row-major bytes."""
    nbytes: int
    first_chunk: int = 0
    last_chunk: int = 0
    """The sequences of the chunks that hold its bytes, inclusive; 0 and 0 where it has none (no bytes, or tied)."""
    tied_to: str = ""
    """The name of the tensor of the same part whose bytes these are; they travel once."""


class Part(Payload, frozen=True):
    """What one publish staged, or as much of it as one event holds: tensors and where their chunks are."""

    version: int
    tensors: tuple[TensorSpec, ...]


class PartRef(Payload, frozen=True):
    """Names a part event of the same weight partition."""

    producer: str
    incarnation: int
    sequence: int


class Commit(Payload, frozen=True):
    """Seals `version` as the union of its parts."""

    version: int
    parts: tuple[PartRef, ...]
    digest: bytes
    """The digest of digests (`digest.version_digest`)."""
    schema: str = "same"
    """"same" | "replace": names, shapes or dtypes may change from this version on."""
    rewind: bool = False
    """The version may be lower than the newest, and supersedes the higher ones."""
    needs: bytes = b""
    """An encoded vector of rows and KV that must be applied before the version is shown."""


class Optimizer(Payload, frozen=True):
    """How a table applies gradients: `kind` and its numbers by name."""

    kind: str
    settings: dict[str, float] = {}


class Initializer(Payload, frozen=True):
    """The value of a row that was never written: "constant", "normal" or "uniform" with its numbers, from the key and `seed`."""

    kind: str = "constant"
    settings: dict[str, float] = {}
    seed: int = 0


class Table(Payload, frozen=True):
    """Defines (or alters) a table of rows: int64 key → vector of `dim` values of `dtype`."""

    table: str
    dim: int
    dtype: str
    optimizer: Optimizer | None = None
    init: Initializer = Initializer("constant", {"value": 0.0})
    expire_after_ns: int | None = None


class Rows(Payload, frozen=True):
    """Bulk: `count` int64 keys, then `count` rows of `dim` values, both little-endian. The last row of a repeated key wins."""

    table: str
    count: int
    dim: int
    dtype: str


class DeleteRows(Payload, frozen=True):
    """Bulk: `count` int64 keys."""

    table: str
    count: int
    up_to: int | None = None
    """A position: rows that were written behind it stay. None: all of them go, whenever they were written."""


class Gradients(Payload, frozen=True):
    """Bulk as of `Rows`. A key that repeats is summed first, in the order given."""

    table: str
    count: int
    dim: int
    dtype: str


class GradientPiece(Payload, frozen=True):
    """`nbytes` bytes of the gradient of the tensor `name`, beginning at its byte `offset`; always whole elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """Of the whole gradient, whose logical row-major values these are."""
    digest: bytes
    """xxh3_128 of the row-major bytes of the whole gradient."""
    offset: int
    nbytes: int


class DenseGradients(Payload, frozen=True):
    """Event `number` of the `count` of one producer's gradients of `step`. Bulk: the bytes of its pieces. A tensor's pieces come in order, one
    tensor after the other. Input for processors: no replica's state changes.
    """

    step: int
    number: int
    count: int
    pieces: tuple[GradientPiece, ...]


class ValidFor(Payload, frozen=True):
    """What an entry is tied to: it is served only beside that version."""

    version: int
    commit: int = 0
    """The position of the very commit, where the version was sealed when the entry was put. 0 where it was not: then a commit
    of the version counts that names the entry."""


class PutItem(Payload, frozen=True):
    """One entry: its value is the next `nbytes` of the bulk."""

    key: bytes
    nbytes: int
    ttl_ns: int | None = None
    valid_for: ValidFor | None = None


class Put(Payload, frozen=True):
    items: tuple[PutItem, ...]


class Delete(Payload, frozen=True):
    keys: tuple[bytes, ...]


class Note(Payload, frozen=True):
    """Changes nothing: a record that counts, so that a join knows the log's end."""

    leaves: bool = False
    """The owner gives the partition up: where this is the last record of its epoch, nothing above it was ever sequenced."""


class Claim(Payload, frozen=True):
    """A broker claims the partition from `epoch` on. Records count only under the latest claim."""

    epoch: int
    nonce: int
    owner: str


class Epoch(Payload, frozen=True):
    """Opens an epoch: offset 0. `previous_end` is the position at which the epoch before ended; what is above it is lost."""

    previous_end: int
    boot: str = ""
    """The present boot of the owner's machine, where the log lies on it: equal boots mean no power failure between."""
    failed_writes: int = 0
    """How many writes or syncs of this log had failed by then."""


class Base(Payload, frozen=True):
    """Bulk: the whole state of the partition core as of this record's position. A log is cut only before a base."""

    epoch: int


PAYLOADS: dict[Kind, type[Payload]] = {
    Kind.CHUNK: Chunk,
    Kind.PART: Part,
    Kind.COMMIT: Commit,
    Kind.TABLE: Table,
    Kind.ROWS: Rows,
    Kind.DELETE_ROWS: DeleteRows,
    Kind.GRADIENTS: Gradients,
    Kind.PUT: Put,
    Kind.DELETE: Delete,
    Kind.NOTE: Note,
    Kind.CLAIM: Claim,
    Kind.EPOCH: Epoch,
    Kind.BASE: Base,
    Kind.DENSE_GRADIENTS: DenseGradients,
}

KIND_OF: dict[type[Payload], Kind] = {payload: kind for kind, payload in PAYLOADS.items()}

WEIGHT_KINDS = frozenset({Kind.CHUNK, Kind.PART, Kind.COMMIT})
STATE_KINDS = frozenset(
    {Kind.TABLE, Kind.ROWS, Kind.DELETE_ROWS, Kind.GRADIENTS, Kind.DENSE_GRADIENTS, Kind.PUT, Kind.DELETE}
)
CHANGING_KINDS = STATE_KINDS - {Kind.DENSE_GRADIENTS}
"""Those of a state partition's events that change what a replica holds; the rest is for processors."""
LOG_ONLY_KINDS = frozenset({Kind.CLAIM, Kind.BASE})
"""Records that take no position of their own and are never fanned out."""
