"""How a row lies in a file: a slot of fixed length, all of 64-bit words.

    checksum | key | position | kind of optimizer | values, padded | state, padded

The checksum covers all words behind it. It is a sum of products with fixed odd numbers (multilinear hashing): whatever changes in one
word changes it, and anything else goes unnoticed once in about 2**63. A slot of zeros is no row, and a row in another's place is found
out by its key.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .batch import RowBatch
from .spec import OPTIMIZER_SETTINGS, RowSpec

WORD_BYTES: Final = 8
HEADER_WORDS: Final = 4
_CHECKSUM, _KEY, _POSITION, _KIND = range(HEADER_WORDS)

_KINDS: Final = {kind: number for number, kind in enumerate(("", *sorted(OPTIMIZER_SETTINGS)), start=1)}

Words = NDArray[np.uint64]


class SlotLayout:
    """Rows of one table, with state of one kind, as slots of `words` words. Pure."""

    def __init__(self, spec: RowSpec) -> None:
        self._spec: Final = spec
        value_words = -(-spec.dim * spec.value_dtype.itemsize // WORD_BYTES)
        state_words = -(-spec.state_width * spec.accumulate_dtype.itemsize // WORD_BYTES)
        self._values_at: Final = HEADER_WORDS * WORD_BYTES
        self._state_at: Final = self._values_at + value_words * WORD_BYTES
        self.words: Final = HEADER_WORDS + value_words + state_words
        self.nbytes: Final = self.words * WORD_BYTES
        """Bytes of a slot."""
        generator = np.random.Generator(np.random.PCG64(0x7469657273))
        self._factors: Final = generator.integers(0, 2**64 - 1, self.words - 1, np.uint64, endpoint=True) | np.uint64(1)

    def pack(self, batch: RowBatch) -> Words:
        """(n, words): the slots of a batch of this layout's spec."""
        slots = np.zeros((len(batch), self.words), np.uint64)
        slots[:, _KEY] = batch.keys.view(np.uint64)
        slots[:, _POSITION] = batch.positions
        slots[:, _KIND] = _KINDS[self._spec.kind]
        for rows, at in ((batch.values, self._values_at), (batch.state, self._state_at)):
            data = _bytes_of(rows)
            _bytes_of(slots)[:, at : at + data.shape[1]] = data
        slots[:, _CHECKSUM] = self._checksums(slots)
        return slots

    def unpack(self, slots: Words) -> RowBatch:
        """The batch that was packed, in memory of its own."""
        spec = self._spec
        return RowBatch(
            slots[:, _KEY].copy().view(np.int64),
            self._taken(slots, self._values_at, spec.dim, spec.value_dtype),
            self._taken(slots, self._state_at, spec.state_width, spec.accumulate_dtype),
            spec.kind,
            slots[:, _POSITION].copy(),
        )

    def are_whole(self, slots: Words, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,): whether each slot is just as it was packed, and of that key."""
        are_whole: NDArray[np.bool_] = slots[:, _CHECKSUM] == self._checksums(slots)
        are_whole &= slots[:, _KEY] == keys.view(np.uint64)
        are_whole &= slots[:, _KIND] == _KINDS[self._spec.kind]
        return are_whole

    def _taken(self, slots: Words, at: int, width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        data = np.ascontiguousarray(_bytes_of(slots)[:, at : at + width * dtype.itemsize])
        return data.view(dtype).reshape(len(slots), width)

    def _checksums(self, slots: Words) -> Words:
        body = slots[:, 1:]
        # The upper half comes down too: a product alone would let high bits of two words cancel.
        mixed = body ^ (body >> np.uint64(32))
        sums: Words = np.einsum("ij,j->i", mixed, self._factors)
        return sums + np.uint64(0x9E3779B97F4A7C15)


def _bytes_of(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """(n, bytes of a row). Through bytes, since a row need not fill its last word, and numpy views no foreign dtype (bfloat16) as words."""
    rows = np.ascontiguousarray(rows)
    return rows.view(np.uint8).reshape(len(rows), rows.shape[1] * rows.itemsize)
