"""Frames of one partition, stamped in order as its owner would."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from paramstream.consistency.position import epoch_of, position
from paramstream.consistency.vector import PartitionId, VersionVector
from paramstream.events.codec import Buffer, Head, encode_event, encode_vector, stamp_frame
from paramstream.events.digest import tensor_digest, version_digest
from paramstream.events.kinds import (
    Chunk,
    Commit,
    Delete,
    Epoch,
    Part,
    PartRef,
    Payload,
    Put,
    PutItem,
    Segment,
    TensorSpec,
)


class Writer:
    """Keeps every frame it makes in `log`, by position; `lose_after` drops what an epoch's end cuts off."""

    def __init__(self, partition: PartitionId, epoch: int = 5) -> None:
        self.partition = partition
        self.log: dict[int, bytearray] = {}
        self._order: list[int] = []
        self.position = 0
        self.time = 1_000_000_000
        self._sequences: dict[str, int] = {}
        self.open_epoch(epoch)

    def open_epoch(self, epoch: int | None = None, end: int | None = None) -> bytearray:
        """The next epoch's record; with `end`, what stands above it is lost and leaves the log."""
        end = self.position if end is None else end
        kept = bisect_right(self._order, end)
        for lost in self._order[kept:]:
            self.log.pop(lost, None)
        del self._order[kept:]
        opens_at = position(epoch_of(self.position) + 1 if epoch is None else epoch, 0)
        return self._stamp(encode_event(self.partition, Head("", 0, 0), Epoch(end)), opens_at)

    def write(
        self,
        payload: Payload,
        bulk: Sequence[Buffer] = (),
        *,
        producer: str = "p",
        own: Mapping[PartitionId, int] | None = None,
        observed: Mapping[PartitionId, int] | None = None,
    ) -> bytearray:
        sequence = self._sequences[producer] = self._sequences.get(producer, 0) + 1
        head = Head(
            producer,
            1,
            sequence,
            own=encode_vector(VersionVector(own or {})),
            observed=encode_vector(VersionVector(observed or {})),
        )
        return self._stamp(encode_event(self.partition, head, payload, bulk), self.position + 1)

    def put(self, key: bytes, value: bytes, ttl_ns: int | None = None, **stamp: Mapping[PartitionId, int]) -> bytearray:
        return self.write(Put((PutItem(key, len(value), ttl_ns),)), [value], **stamp)  # type: ignore[arg-type]

    def delete(self, key: bytes) -> bytearray:
        return self.write(Delete((key,)))

    def version(
        self,
        number: int,
        arrays: Mapping[str, npt.NDArray[np.float32]],
        *,
        chunk_bytes: int = 1 << 16,
        rewind: bool = False,
        tied: Mapping[str, str] | None = None,
        producer: str = "p",
    ) -> list[bytearray]:
        """Chunks, one part and the commit of a whole version."""
        frames: list[bytearray] = []
        specs: list[TensorSpec] = []
        for name, array in arrays.items():
            data = array.tobytes()
            first = self._sequences.get(producer, 0) + 1
            for offset in range(0, len(data), chunk_bytes):
                piece = data[offset : offset + chunk_bytes]
                frames.append(
                    self.write(Chunk(number, (Segment(name, offset, len(piece)),)), [piece], producer=producer)
                )
            last = self._sequences.get(producer, 0)
            span = (first, last) if data else (0, 0)
            specs.append(TensorSpec(name, str(array.dtype), array.shape, tensor_digest(data), len(data), *span))
        for name, root in (tied or {}).items():
            held = next(spec for spec in specs if spec.name == root)
            specs.append(TensorSpec(name, held.dtype, held.shape, held.digest, held.nbytes, tied_to=root))
        frames.append(self.write(Part(number, tuple(specs)), producer=producer))
        part = PartRef(producer, 1, self._sequences[producer])
        commit = Commit(number, (part,), version_digest(specs), rewind=rewind)
        frames.append(self.write(commit, producer=producer))
        return frames

    def after(self, position: int, count: int = 1 << 30) -> list[memoryview]:
        at = self._order[bisect_right(self._order, position) :][:count]
        return [memoryview(self.log[position]) for position in at if position in self.log]

    def place(self, frame: bytearray) -> bytearray:
        """Put a frame that is stamped already, perhaps a damaged one, at the next position."""
        self.position += 1
        self.log[self.position] = frame
        self._order.append(self.position)
        return frame

    def _stamp(self, frame: bytearray, at: int) -> bytearray:
        self.time += 1_000_000
        stamp_frame(frame, position=at, time=self.time, nonce=1)
        self.position = at
        self.log[at] = frame
        self._order.append(at)
        return frame
