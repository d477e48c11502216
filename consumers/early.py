"""A version's slot, taken when its first chunk comes: the weights are in their place by the time the commit says so.

Which tensors a version has is known from its commit on. Until then it is taken to be laid out like the one served, as versions of
one model are; where it is not, the bytes are copied out of here once more. Chunks that are put in place need not be held as
received, so ZeroMQ has the memory of their frames back at once, and the digests are made while the bytes are in a cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..events.kinds import Segment
from ..tiers.arena import Slot
from ..tiers.dense import Extent
from .filling import Filling


class EarlySlot:
    """What has come of one version, each tensor from its beginning on. It owns the slot until `give_up` or `hand_over`."""

    def __init__(self, version: int, extents: Mapping[str, Extent], slot: Slot) -> None:
        self.version = version
        self.extents = extents
        """Where it puts each tensor; names tied to another are left out."""
        self.slot = slot
        self.is_gone = False
        """The slot is somebody else's, or nobody's: what was put in place can no longer be taken from here."""
        self.filling = Filling(extents, slot)

    def place(self, segments: tuple[Segment, ...], bulk: memoryview) -> bool:
        """Copy a chunk into its place. False, with nothing done, where a tensor is not as expected, or does not go on from
        where it stands: what is there already is never written over.
        """
        if self.is_gone or not self._go_on(segments):
            return False
        at = 0
        for segment in segments:
            self.filling.put(segment.name, segment.offset, bulk[at : at + segment.nbytes])
            at += segment.nbytes
        return True

    def view(self, segment: Segment) -> memoryview:
        """The bytes of a segment that was put in place."""
        start = self.extents[segment.name].offset + segment.offset
        return self.slot.buffer[start : start + segment.nbytes]

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Whether a version of these tensors (name → bytes) is laid out like this."""
        return sizes == {name: extent.nbytes for name, extent in self.extents.items()}

    def hand_over(self) -> None:
        """The slot belongs to a sealed version from here on."""
        self.is_gone = True

    def give_up(self) -> None:
        """Release the slot, and with it what was put in place."""
        if not self.is_gone:
            self.is_gone = True
            self.slot.release()

    def _go_on(self, segments: tuple[Segment, ...]) -> bool:
        names = {segment.name for segment in segments}
        return len(names) == len(segments) and all(
            (extent := self.extents.get(segment.name)) is not None
            and segment.offset == self.filling.filled(segment.name)
            and segment.offset + segment.nbytes <= extent.nbytes
            for segment in segments
        )
