"""What moved between the tiers of a row table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Of one table, in rows, since it was made."""

    ssd_hits: int = 0
    """Rows that look-ups found on SSD."""
    promotions: int = 0
    """Rows that came up into DRAM."""
    demotions: int = 0
    """Rows that left DRAM."""
    written: int = 0
    """Of these, those that had to be written, since they had no copy."""
    bytes_read: int = 0
    bytes_written: int = 0
    failed_writes: int = 0
    """Rows that could not be moved down, and stayed."""
    failed_reads: int = 0
    """Rows that could not be read."""


NO_COUNTS: Final = TierCounts()
