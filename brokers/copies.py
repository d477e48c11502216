"""What announced snapshots hold of a topic's state, so that its log need not."""

from __future__ import annotations

from ..consistency.position import epoch_of
from ..consistency.vector import PartitionId
from .partitions import Partitions


def copied(partitions: Partitions, partition: PartitionId) -> int:
    """Up to there this broker's keeper holds the state of a partition that the broker owns; 0 where it holds none.

    Each snapshot that it has announced does, so that the one before is of use where the newest is damaged.
    """
    if not partitions.keeper:
        return 0
    owned = partitions.owned[partition]
    return min(
        (
            floor
            for snapshot in partitions.meta.snapshots(partition[0], partitions.keeper)
            for number, floor, ceiling in snapshot.partitions
            # Under "none" a snapshot ends with its epoch.
            if number == partition[1] and (owned.lasts or epoch_of(ceiling) == owned.core.epoch)
        ),
        default=0,
    )
