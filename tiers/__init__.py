"""Tiers: where items are held, and within which budget.

A dense tensor is a named byte range here, a KV entry is bytes; dtypes, events and sockets are others' business.
"""

from .arena import Arena, Slot
from .budget import Budget
from .dense import DenseVersion, Extent, lay_out
from .entries import Entry, EntryTable
from .sizes import parse_size
from .store import Partition, TieredStore, TierUsage
from .usage import TierStatus

__all__ = [
    "Arena",
    "Budget",
    "DenseVersion",
    "Entry",
    "EntryTable",
    "Extent",
    "Partition",
    "Slot",
    "TierStatus",
    "TierUsage",
    "TieredStore",
    "lay_out",
    "parse_size",
]
