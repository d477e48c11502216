"""Dense weights as a tier sees them: named byte ranges of one slot, sealed together."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, final

from .arena import Slot

ALIGNMENT_BYTES = 64
"""Where a tensor may begin: the start of a cache line, which suits every dtype and the widest vector loads."""


class Extent(NamedTuple):
    """A byte range of a slot: from `offset` (inclusive), `nbytes` long, which may be 0."""

    offset: int
    nbytes: int


def lay_out(sizes: Mapping[str, int]) -> tuple[dict[str, Extent], int]:
    """Places named tensors of `sizes` bytes one after another, each on a 64-byte boundary.

    Returns the extents, in the order of `sizes`, and the bytes that a slot for all of them needs.
    """
    extents: dict[str, Extent] = {}
    end = 0
    for name, nbytes in sizes.items():
        offset = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        extents[name] = Extent(offset, nbytes)
        end = offset + nbytes
    return extents, end


class _References:
    """How many still serve a version."""

    __slots__ = ("count", "lock")

    def __init__(self) -> None:
        self.count = 1
        # Reentrant, since a reference may be given back by a finalizer that runs under it.
        self.lock = threading.RLock()


@final
@dataclass(frozen=True, slots=True, eq=False)
class DenseVersion:
    """One sealed, complete set of weights in one slot. It begins with one reference, its maker's, and takes over the slot.

    Whoever serves or reads it holds a reference: `retain`, map the slot, `release`. With the last one the slot is released;
    mappings and arrays made before stay valid and keep the memory to themselves.
    """

    version: int
    """The user's number."""
    position: int
    """The position of the commit that sealed it; a greater one is newer."""
    digest: bytes
    """The digest of digests that the commit carries."""
    extents: Mapping[str, Extent]
    """Where each tensor lies in the slot. Tied names may share an extent."""
    slot: Slot
    _references: _References = field(default_factory=_References, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, (offset, nbytes) in self.extents.items():
            if offset < 0 or nbytes < 0 or offset + nbytes > self.slot.nbytes:
                raise ValueError(
                    f"{name!r} would take the bytes {offset} to {offset + nbytes} of a slot of {self.slot.nbytes}"
                )
        self.slot.seal()

    @property
    def nbytes(self) -> int:
        """Bytes charged for it."""
        return self.slot.capacity

    def retain(self) -> bool:
        """Adds a reference. False, with nothing added, once the last one is gone: look then for the version served by now."""
        with self._references.lock:
            if self._references.count == 0:
                return False
            self._references.count += 1
            return True

    def release(self) -> None:
        """Gives back one reference; with the last one the slot is released. Once for the maker, once for each `retain`."""
        with self._references.lock:
            if self._references.count == 0:
                raise ValueError(f"version {self.version} was released more often than retained")
            self._references.count -= 1
            last = self._references.count == 0
        if last:
            self.slot.release()
