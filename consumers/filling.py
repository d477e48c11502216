"""Tensors on their way into a slot: each piece is copied into place, and its digest is made while the bytes are in a cache."""

from __future__ import annotations

from collections.abc import Mapping

from ..events.digest import TensorHash, tensor_digest, tensor_hash
from ..tiers.arena import Slot
from ..tiers.dense import Extent


class Filling:
    """Does not own the slot. One thread fills it."""

    def __init__(self, extents: Mapping[str, Extent], slot: Slot) -> None:
        self._extents = extents
        self._slot = slot
        self._filled: dict[str, int] = {}
        self._hashes: dict[str, TensorHash] = {}
        self._out_of_order: set[str] = set()
        """Tensors of which a piece did not go on from where they stood: their digests are made anew, from the slot."""

    def put(self, name: str, offset: int, data: memoryview) -> None:
        """Copy what begins at byte `offset` of the tensor `name`, within its extent, into place."""
        self._slot.write(data, self._extents[name].offset + offset)
        if offset != self.filled(name):
            self._out_of_order.add(name)
            return
        self._hashes.setdefault(name, tensor_hash()).update(data)
        self._filled[name] = offset + len(data)

    def filled(self, name: str) -> int:
        """How many bytes of a tensor are there, from its beginning on, as far as they came in order."""
        return self._filled.get(name, 0)

    def digest(self, name: str) -> bytes:
        """Of all of a tensor's bytes in the slot."""
        extent = self._extents[name]
        if name in self._out_of_order or self.filled(name) != extent.nbytes:
            return tensor_digest(self._slot.buffer[extent.offset : extent.offset + extent.nbytes])
        return self._hashes[name].digest() if extent.nbytes else tensor_digest(b"")
