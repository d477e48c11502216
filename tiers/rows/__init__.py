"""Row tables: int64 key → vector, with the optimizer's state and the position beside each row."""

from .batch import RowBatch, empty_batch
from .spec import InitSpec, OptimizerSpec, RowSpec
from .table import RowCounters, RowTable

__all__ = ["InitSpec", "OptimizerSpec", "RowBatch", "RowCounters", "RowSpec", "RowTable", "empty_batch"]
