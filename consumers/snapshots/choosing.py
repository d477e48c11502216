"""Which snapshot a restore begins with: one that does not lie above where the restore ends, and that the log goes on from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ...consistency.position import START, show
from ...errors import CorruptLog, LogTruncated
from .folder import find_topic, in_order, topic_folder
from .reading import Snapshot
from .seeding import Seed

_log = logging.getLogger(__name__)


def snapshots_in(
    root: Path, topic: str, topic_id: int | None = None, damaged: list[CorruptLog] | None = None
) -> Iterator[Snapshot]:
    """The snapshots of a topic whose manifests are whole, the latest first; their files are not proved yet.

    The others are named in the log, and added to `damaged`. With `topic_id`, of that very topic. Raises `UnknownTopic`,
    `CorruptLog` where `root` is no folder of snapshots.
    """
    folder = find_topic(root, topic) if topic_id is None else topic_folder(root, topic, topic_id)
    for path in in_order(folder):
        try:
            snapshot = Snapshot(path)
        except CorruptLog as error:
            _pass_over(error, topic)
            if damaged is not None:
                damaged.append(error)
            continue
        yield snapshot


def is_whole(snapshot: Snapshot, damaged: list[CorruptLog]) -> bool:
    """Reads every file. One that is damaged is named in the log, and added to `damaged`."""
    try:
        snapshot.check()
    except CorruptLog as error:
        _pass_over(error, snapshot.manifest.topic)
        damaged.append(error)
        return False
    return True


def _pass_over(error: CorruptLog, topic: str) -> None:
    error.topic = topic
    _log.warning("a snapshot is passed over: %s", error)


def seeds_below(
    snapshots: Iterator[Snapshot], numbers: Sequence[int], until: Mapping[int, int], start: Callable[[int], int]
) -> Iterator[Seed]:
    """State of the partitions `numbers` that a restore up to `until` can begin with, the newest first: each proved whole.

    `start` gives the position before the first one that the log still has of a partition.
    """
    for snapshot in snapshots:
        copies = [snapshot.manifest.state_of(number) for number in numbers]
        fits = all(
            copy is not None and start(copy.number) <= copy.floor and copy.ceiling <= until.get(copy.number, START)
            for copy in copies
        )
        if fits and is_whole(snapshot, []):
            yield Seed.of_snapshot(snapshot, numbers, dense=False)


def check_alone(snapshot: Snapshot, *, as_of_version: bool) -> None:
    """Whether rows and KV of a snapshot are whole without a log: nothing moved while they were copied, and nothing in them rests
    on what it has not. `as_of_version`: and nothing came behind the commit of its version.

    Raises `LogTruncated` that names what of the log is needed.
    """
    held = snapshot.manifest
    sealed = held.weights.sealed
    seen = {number: at for _, number, at in sealed.vector} if sealed is not None else {}
    ceilings = {number: ceiling for number, (_, ceiling) in held.spans().items()}
    for number in range(held.partitions):
        if held.state_of(number) is None:
            raise _needs_log(
                snapshot, number, START, START, "it is of a replica that did not follow all state partitions"
            )
    for state in held.state:
        if state.floor < state.ceiling:
            raise _needs_log(snapshot, state.number, state.floor, state.ceiling, "it was copied while it moved")
        if as_of_version and sealed is not None and not state.is_empty and state.ceiling > seen.get(state.number, 0):
            problem = f"it goes on behind the commit of version {sealed.version}"
            raise _needs_log(snapshot, state.number, seen.get(state.number, 0), state.ceiling, problem)
    for topic, number, at in held.context if not all(state.is_empty for state in held.state) else ():
        if topic == held.topic_id and at > ceilings.get(number, at):
            raise _needs_log(snapshot, number, ceilings[number], at, "what it holds rests on events behind it")


def _needs_log(snapshot: Snapshot, number: int, floor: int, ceiling: int, problem: str) -> LogTruncated:
    span = f", from {show(floor)} to {show(ceiling)}" if ceiling else ""
    return LogTruncated(
        f"the snapshot alone does not give rows and KV: {problem}{span}",
        topic=snapshot.manifest.topic,
        partition=number,
        position=ceiling,
        item=str(snapshot.path),
        remedy="Restore from the log, with this folder as snapshots=, or the weights alone with dense_only=True",
    )
