"""A broker without a network and replicas of it, with a folder for their snapshots."""

from __future__ import annotations

from pathlib import Path

from paramstream.consumers.replica import Replica
from paramstream.consumers.snapshots.asked import SnapshotInfo

from .fakes import FakeBroker


class World:
    """A broker without a network, and replicas of it."""

    def __init__(self, root: Path, **settings: int | str) -> None:
        self.root = root
        self.broker = FakeBroker(**settings)  # type: ignore[arg-type]
        self.replicas: list[Replica] = []

    def settle(self, *, durable: bool = True) -> None:
        """Everything written arrives; with `durable` it is durable, too."""
        if durable:
            self.broker.durable = {p: writer.position for p, writer in self.broker.writers.items()}
        self.broker.settle()
        self.broker.beat()

    def replica(self, start: str = "latest", **options: object) -> Replica:
        replica = Replica(
            ["model"],
            directory=self.broker.directory,
            make_link=self.broker.make_link,
            start=start,
            arrays="numpy",
            timeout=5.0,
            **options,  # type: ignore[arg-type]
        )
        self.replicas.append(replica)
        return replica

    def snapshot(self, replica: Replica, **options: float) -> SnapshotInfo:
        (info,) = replica.snapshot(self.root, **options)  # type: ignore[arg-type]
        return info

    def restarted(self, start: str | None = None, **options: object) -> Replica:
        """Another replica, that begins with the snapshot."""
        for replica in self.replicas:
            replica.close()
        self.broker.follows.clear()
        return self.replica(f"snapshot:{self.root}" if start is None else start, **options)
