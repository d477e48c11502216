"""What `replica.weights()` hands out: one whole version as a mapping of arrays, without a copy."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..consistency.vector import VersionVector
from ..events.arrays import ArrayKind, as_numpy, as_torch
from ..events.kinds import TensorSpec
from ..tiers.dense import Extent
from .versions import Sealed


class Weights(Mapping[str, Any]):
    """One sealed version: name → array of the shape and dtype that were published; always whole, never changing.

    numpy arrays are read-only views of memory that all readers share. torch tensors are views of a copy-on-write mapping of
    this object's own: what is written into them nobody else sees. Tied names give the same array. The memory stays while the
    object or any of its arrays lives. Thread-safe.
    """

    __slots__ = (
        "__weakref__", "_arrays", "_buffer", "_extents", "_lock", "_made", "_make_vector", "_sealed", "_specs", "_topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        sealed: Sealed,
        mapping: mmap.mmap,
        arrays: ArrayKind,
        vector: Callable[[], VersionVector[str]],
    ) -> None:
        self._topic = topic
        self._sealed = sealed
        self._specs: Mapping[str, TensorSpec] = sealed.specs
        self._extents: Mapping[str, Extent] = sealed.dense.extents
        self._buffer = memoryview(mapping)
        self._arrays: ArrayKind = arrays
        self._make_vector = vector
        self._made: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def version(self) -> int:
        return self._sealed.version

    @property
    def digest(self) -> str:
        """The digest of digests, 32 hexadecimal digits."""
        return self._sealed.digest

    @property
    def vector(self) -> VersionVector[str]:
        """Closed: all that these weights had seen when they were sealed, their commit included."""
        return self._make_vector()

    def __getitem__(self, name: str) -> Any:
        spec = self._specs[name]
        key = spec.tied_to or name
        with self._lock:
            found = self._made.get(key)
            if found is None:
                found = self._made[key] = self._make(spec)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __repr__(self) -> str:
        return f"<Weights of {self.topic!r}: version {self.version}, {len(self)} tensors, digest {self.digest}>"

    def _make(self, spec: TensorSpec) -> Any:
        extent = self._extents[spec.name]
        buffer = self._buffer[extent.offset : extent.offset + extent.nbytes]
        make = as_torch if self._arrays == "torch" else as_numpy
        return make(buffer, spec.dtype, spec.shape)
