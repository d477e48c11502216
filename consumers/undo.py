"""Before-images: what a replica's KV entries and rows were before each event that may still be lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ..consistency.vector import PartitionId
from ..tiers.entries import Entry
from ..tiers.rows.batch import RowBatch
from ..tiers.rows.table import RowTable
from ..tiers.store import TieredStore

IMAGE_BYTES = 200
"""Charged for each before-image beside its key and value."""


class _Image(NamedTuple):
    position: int
    """Of the event that changed it."""
    key: bytes
    before: Entry | None
    nbytes: int


class _RowsImage(NamedTuple):
    position: int
    """Of the event that changed them."""
    table: RowTable
    before: RowBatch
    nbytes: int


class BeforeImages:
    """Of one state partition, in the order of the changes. Their bytes are charged to the store as staging."""

    def __init__(self, store: TieredStore, partition: PartitionId) -> None:
        self._store = store
        self._partition = partition
        self._images: deque[_Image | _RowsImage] = deque()
        self._nbytes = 0
        self._durable = 0

    @property
    def durable(self) -> int:
        """Up to there nothing can be lost."""
        return self._durable

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def room_for(self, keys: Iterable[bytes]) -> list[int]:
        """Charge the images of an event's keys before any is changed; hand each result to `keep`. Raises `StorageFull`, with nothing
        charged.
        """
        held = self._store.entries(self._partition).held
        sizes = [_image_bytes(key, held(key)) for key in keys]
        self._store.charge_staging(sum(sizes))
        return sizes

    def keep(self, position: int, key: bytes, before: Entry | None, nbytes: int) -> None:
        """The event at `position` changed `key`, which was `before`; `nbytes` were charged for it."""
        # Its value may have come from SSD, or gone there, since then.
        taken = _image_bytes(key, before)
        if taken > nbytes:
            self._store.charge_staging(taken - nbytes, forced=True)
        else:
            self._store.refund_staging(nbytes - taken)
        self._images.append(_Image(position, key, before, taken))
        self._nbytes += taken

    def keep_removed(self, position: int, key: bytes, before: Entry) -> None:
        """The event at `position` removed an entry whose time was over. Its own bytes, just given back, pay for the image."""
        nbytes = _image_bytes(key, before)
        self._store.charge_staging(nbytes, forced=True)
        self.keep(position, key, before, nbytes)

    def room_for_rows(self, nbytes: int) -> None:
        """Charge the image of an event's rows before any is changed; hand it to `keep_rows`. Raises `StorageFull`, with nothing charged."""
        self._store.charge_staging(nbytes)

    def keep_rows(self, position: int, table: RowTable, before: RowBatch, nbytes: int) -> None:
        """The event at `position` changed these rows of `table`; `nbytes` were charged for them."""
        self._images.append(_RowsImage(position, table, before, nbytes))
        self._nbytes += nbytes

    def settle(self, durable: int) -> None:
        """What was or will be changed up to `durable` can no longer be lost: its images go."""
        self._durable = max(self._durable, durable)
        self.drop_settled()

    def drop_settled(self) -> None:
        """An event was applied whole. In a replica that catches up it was durable long before, and no head may move again."""
        nbytes = 0
        while self._images and self._images[0].position <= self._durable:
            nbytes += self._images.popleft().nbytes
        self._refund(nbytes)

    def undo(self, end: int) -> None:
        """Take back every change above `end`, the last one first."""
        entries = self._store.entries(self._partition)
        while self._images and self._images[-1].position > end:
            image = self._images.pop()
            if isinstance(image, _RowsImage):
                image.table.restore(image.before)
            else:
                entries.restore(image.key, image.before)
            self._refund(image.nbytes)

    def clear(self) -> None:
        self._images.clear()
        self._refund(self._nbytes)

    def _refund(self, nbytes: int) -> None:
        self._nbytes -= nbytes
        self._store.refund_staging(nbytes)


def _image_bytes(key: bytes, before: Entry | None) -> int:
    """DRAM that the image takes; a value on SSD stays there with it."""
    return IMAGE_BYTES + len(key) + (before.dram_bytes if before is not None else 0)
