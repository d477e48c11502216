"""The HBM tier: values of hot rows on a device, over the tiers that hold them. Needs torch; without CUDA it lies on the CPU."""

from .table import HbmCounters, HbmTable, Held
from .tier import Hbm, HbmUsage

__all__ = ["Hbm", "HbmCounters", "HbmTable", "HbmUsage", "Held"]
