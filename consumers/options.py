"""How a replica follows its topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ..consistency.gate import Ordering
from ..consistency.vector import VersionVector
from ..errors import InvalidEvent
from ..events.arrays import ArrayKind
from ..events.recording import HistoryFile
from .effects import Step
from .scope import is_durable_only
from .snapshots.seeding import Seed


@dataclass(frozen=True, slots=True)
class Options:
    """What `Replica` says of each of them. Raises `InvalidEvent` for what it cannot be."""

    ordering: Ordering
    start: str | VersionVector[str]
    catch_up: str
    visibility: str
    keep_versions: int
    partitions: Sequence[int] | None
    arrays: ArrayKind
    snapshot_dir: Path | None
    seeds: Sequence[Seed]
    on_applied: Callable[[Step], None] | None
    history: HistoryFile | None

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.keep_versions), int) or self.keep_versions < 1:
            raise InvalidEvent(
                f"keep_versions={self.keep_versions!r}: a replica keeps a whole number of versions, one at least"
            )
        if self.catch_up not in ("latest", "all"):
            raise InvalidEvent(f"catch_up={self.catch_up!r} is neither 'latest' nor 'all'")
        if self.arrays not in ("numpy", "torch"):
            raise InvalidEvent(f"arrays={self.arrays!r} is neither 'numpy' nor 'torch'")
        is_durable_only(self.visibility)

    @property
    def every_version(self) -> bool:
        """None is passed over where the weights fall behind."""
        return self.catch_up == "all"

    @property
    def durable_only(self) -> bool:
        """Nothing is shown that could still be lost."""
        return is_durable_only(self.visibility)
