"""What a tier of a store holds and has moved, for whoever looks: a status, a dashboard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One tier at one moment. The counts are of values, versions and rows together, since the store was made."""

    tier: str
    """"dram", "ssd" or "hbm"."""
    limit: int
    """Bytes of its budget."""
    held: int
    """Bytes charged to it."""
    place: str = ""
    """The folder, or the device; "" for memory."""
    read: int = 0
    """Reads that it served to the tier above, without a move or with one."""
    promoted: int = 0
    """What moved up out of it for good."""
    demoted: int = 0
    """What moved down into it."""
    failed: int = 0
    """What could not move down into it and stayed where it was, or could not be read."""
    error: str = ""
    """The last of those failures, until something moves down again."""
