"""Dense weights as a tier sees them: named byte ranges of one slot, sealed together."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar, final

from ..errors import ParamstreamError
from .arena import Slot
from .blobs import Blob
from .spill import Spill

ALIGNMENT_BYTES = 64
"""Where a tensor may begin: the start of a cache line, which suits every dtype and the widest vector loads."""

_Result = TypeVar("_Result")


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


@dataclass(frozen=True, slots=True)
class Home:
    """Where versions may move between DRAM and SSD."""

    allocate: Callable[[int], Slot]
    """A slot of that many bytes. Raises `StorageFull`."""
    spill: Spill


@final
class DenseVersion:
    """One sealed, complete set of weights: in one slot of DRAM, or in one blob on SSD. Thread-safe.

    It begins in a slot, which it takes over, and with one reference, its maker's. Whoever serves or reads it holds a reference:
    `retain`, map it, `release`. With the last one its memory goes; mappings and arrays made before stay valid and keep the memory to
    themselves. `demote` moves it to SSD, also while it is read; every read brings it back. So whoever holds it need not know
    where it lies, and there is never another copy that could be older or newer.
    """

    def __init__(
        self,
        version: int,
        position: int,
        digest: bytes,
        extents: Mapping[str, Extent],
        slot: Slot,
        home: Home | None = None,
    ) -> None:
        """`home`: where it may move to and come back; without one it stays in its slot."""
        for name, (offset, nbytes) in extents.items():
            if offset < 0 or nbytes < 0 or offset + nbytes > slot.nbytes:
                raise ValueError(
                    f"{name!r} would take the bytes {offset} to {offset + nbytes} of a slot of {slot.nbytes}"
                )
        self.version: Final = version
        """The user's number."""
        self.position: Final = position
        """The position of the commit that sealed it; a greater one is newer."""
        self.digest: Final = digest
        """The digest of digests that the commit carries."""
        self.extents: Final = extents
        """Where each tensor lies in the slot. Tied names may share an extent."""
        self._home = home
        self._nbytes = slot.nbytes
        self._references = 1
        self._slot: Slot | None = slot
        self._blob: Blob | None = None
        """Where it lies while it has no slot."""
        # Reentrant, since a reference may be given back by a finalizer that runs under it. Held for no I/O.
        self._lock = threading.RLock()
        self._coming_back = threading.Lock()
        """Held by the one thread that reads it from SSD."""
        slot.seal()

    @property
    def is_resident(self) -> bool:
        """Whether it lies in DRAM at this moment."""
        return self._slot is not None

    @property
    def is_read(self) -> bool:
        """Whether mappings of it live. False on SSD."""
        slot = self._slot
        return slot is not None and slot.is_viewed

    @property
    def nbytes(self) -> int:
        """Bytes of DRAM charged for it: 0 on SSD."""
        slot = self._slot
        return 0 if slot is None else slot.capacity

    def shared(self) -> mmap.mmap:
        """A new read-only mapping, as `Slot.shared`. On SSD it comes back first: that blocks for the disk.

        Raises `StorageFull` where DRAM has no room for it, `CorruptTier` where SSD does not give its bytes (it can then be
        `refilled`), `ValueError` once the last reference is gone.
        """
        return self._in_slot(Slot.shared)

    def private(self) -> mmap.mmap:
        """A new copy-on-write mapping, as `Slot.private`. Blocks and raises as `shared` does."""
        return self._in_slot(Slot.private)

    def readonly_buffer(self) -> memoryview:
        """Its bytes, as `Slot.readonly_buffer`. Blocks and raises as `shared` does."""
        return self._in_slot(lambda slot: slot.readonly_buffer)

    def promote(self) -> None:
        """Brings it back to DRAM, where it is on SSD. Blocks and raises as `shared` does."""
        self._in_slot(lambda _: None)

    def retain(self) -> bool:
        """Adds a reference. False, with nothing added, once the last one is gone: look then for the version served by now."""
        with self._lock:
            if self._references == 0:
                return False
            self._references += 1
            return True

    def release(self) -> None:
        """Gives back one reference; with the last one its memory goes. Once for the maker, once for each `retain`."""
        slot = None
        with self._lock:
            if self._references == 0:
                raise ValueError(f"version {self.version} was released more often than retained")
            self._references -= 1
            if self._references == 0:
                slot, self._slot, self._blob = self._slot, None, None
        if slot is not None:
            slot.release()

    def demote(self) -> bool:
        """Moves it to SSD and releases its slot, whose memory goes once nobody maps it. Blocks for the disk; readers do not wait.

        False where it stays: it is on SSD already, or has no home, or SSD does not take it (the home's `spill.error` says why).
        """
        home, source = self._home, self._source()
        if home is None or source is None:
            return False
        with source:
            blob = home.spill.put(source)
        with self._lock:
            slot = self._slot if blob is not None else None
            if slot is not None:
                self._slot, self._blob = None, blob
        if slot is None:
            # SSD is full, another thread was faster, or nobody needs it any more.
            return False
        home.spill.count(demoted=1)
        slot.release()
        return True

    def refill(self, other: DenseVersion) -> None:
        """Takes the bytes of the same tensors from `other`, in the place of a blob that cannot be read. Raises `StorageFull`."""
        assert self._home is not None
        slot, buffer = self._home.allocate(self._nbytes), other.readonly_buffer()
        for name, (offset, nbytes) in self.extents.items():
            start = other.extents[name].offset
            slot.write(buffer[start : start + nbytes], offset)
        slot.seal()
        self._settle_in(slot)

    def _source(self) -> memoryview | None:
        with self._lock:
            return None if self._slot is None else self._slot.readonly_buffer

    def _in_slot(self, use: Callable[[Slot], _Result]) -> _Result:
        while True:
            with self._lock:
                slot, blob = self._slot, self._blob
            if slot is None and blob is None:
                raise ValueError(f"version {self.version} was released")
            if slot is None:
                self._come_back()
                continue
            try:
                return use(slot)
            except ValueError:
                # Either it was demoted between the two, or nobody may read it any more.
                if slot is self._slot:
                    raise

    def _come_back(self) -> None:
        home = self._home
        assert home is not None, "only what has a home leaves its slot"
        with self._coming_back:
            blob = self._blob
            if blob is None:
                return
            slot = home.allocate(blob.nbytes)
            try:
                blob.read_into(slot.buffer)
            except ParamstreamError as error:
                slot.release()
                error.version, error.position = self.version, self.position
                home.spill.read_failed(error)
                raise _without_frames(error) from None
            except BaseException:
                slot.release()
                raise
            slot.seal()
            if self._settle_in(slot):
                home.spill.count(read=1, promoted=1)

    def _settle_in(self, slot: Slot) -> bool:
        with self._lock:
            is_wanted = self._blob is not None
            if is_wanted:
                self._slot, self._blob = slot, None
        if not is_wanted:
            slot.release()
        return is_wanted


def _without_frames(error: ParamstreamError) -> ParamstreamError:
    """Whoever keeps the error must not keep the slot with it, which the frames it went through refer to."""
    error.__cause__ = None
    return error.with_traceback(None)
