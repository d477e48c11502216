"""`paramstream verify`: what of a log or of snapshots is whole, what is damaged, and where."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..brokers.registry import topics_in
from ..consistency.position import show
from ..consumers.snapshots.verifying import SnapshotCheck, is_snapshot_folder, verify_snapshots
from ..errors import CorruptLog, LogTruncated
from ..eventlog.kafka.reading import KafkaReader
from ..eventlog.kafka.settings import KafkaLog
from ..eventlog.kafka.verifying import verify_kafka
from ..eventlog.local import META
from ..eventlog.open import path_of
from ..eventlog.reading import FolderReader, LogReader
from ..eventlog.verifying import PartitionCheck, verify_log
from ..tiers.sizes import size_text
from .options import add_json, add_kafka_config, log_of
from .output import print_json

NAME: str = "verify"
HELP: str = "read a log or snapshots as a whole, and name what is damaged; exit code 1 where anything is"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "place",
        metavar="DIR_OR_LOG",
        help='the folder of a log (also as "file:DIR"), of snapshots (also as "snapshot:DIR") or of a keeper; or '
        '"kafka://HOST:PORT". The broker of a log may be running',
    )
    add_kafka_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    place: str = arguments.place
    if place.startswith("kafka:") or arguments.kafka_config is not None:
        arguments.log = place
        return _verify_kafka(log_of(arguments), place, as_json=arguments.json)
    folder = path_of(place.removeprefix("file:").removeprefix("snapshot:"))
    if (folder / META).is_file():
        return _verify_folder(folder, as_json=arguments.json)
    if folder.is_dir() and is_snapshot_folder(folder):
        return _verify_snapshots(folder, as_json=arguments.json)
    raise CorruptLog(f"{folder} holds no log (which has a file {META!r}) and no snapshot", item=str(folder))


def _verify_folder(folder: Path, *, as_json: bool) -> int:
    with FolderReader(folder) as reader:
        names = _names(reader)
    return _verify_log(verify_log(folder), str(folder), names, as_json=as_json)


def _verify_kafka(settings: str | KafkaLog, place: str, *, as_json: bool) -> int:
    with KafkaReader(KafkaLog.from_url(settings) if isinstance(settings, str) else settings) as reader:
        return _verify_log(verify_kafka(reader), place, _names(reader), as_json=as_json)


def _names(reader: LogReader) -> dict[int, str]:
    """Of the topics, by id; none where what holds them is damaged, which its own check says."""
    try:
        return {topic.id: topic.name for topic in topics_in(reader)}
    except (CorruptLog, LogTruncated):
        return {}


def _verify_log(checks: Iterable[PartitionCheck], place: str, names: Mapping[int, str], *, as_json: bool) -> int:
    found: list[PartitionCheck] = []
    for check in checks:
        found.append(check)
        if not as_json:
            _print_partition(check, names)
    whole = not any(check.flaws for check in found)
    if as_json:
        partitions = [_as_json(check, names) for check in found]
        print_json({"kind": "log", "folder": place, "whole": whole, "partitions": partitions})
    else:
        print(f"{place}: {'whole' if whole else 'damaged'}")
    return 0 if whole else 1


def _print_partition(check: PartitionCheck, names: Mapping[int, str]) -> None:
    topic, number = check.partition
    state = "damaged" if check.flaws else "whole"
    name = f"{names[topic]}/{number} " if topic in names else ""
    print(
        f"{name}({topic:016x}-{number}): {state}, {check.records} records in {check.files} files, "
        f"{size_text(check.nbytes)}, behind {show(check.first)} to {show(check.last)}"
    )
    for flaw in check.flaws:
        offset = "" if flaw.offset is None else f" at offset {flaw.offset}"
        at = "" if flaw.position is None else f", behind position {show(flaw.position)}"
        print(f"  damaged: {flaw.path}{offset}{at}: {flaw.problem}")
    if check.torn:
        print(f"  torn, and cut by the next owner: {check.torn}")
    for path in check.remade:
        print(f"  no longer fits, and is made again: {path}")


def _as_json(check: PartitionCheck, names: Mapping[int, str]) -> dict[str, object]:
    return {
        "topic": names.get(check.partition[0]),
        "topic_id": f"{check.partition[0]:016x}",
        "partition": check.partition[1],
        "whole": not check.flaws,
        "files": check.files,
        "records": check.records,
        "bytes": check.nbytes,
        "first": show(check.first),
        "last": show(check.last),
        "torn": check.torn,
        "remade": [str(path) for path in check.remade],
        "damaged": [
            {
                "file": str(flaw.path),
                "offset": flaw.offset,
                "position": None if flaw.position is None else show(flaw.position),
                "problem": flaw.problem,
            }
            for flaw in check.flaws
        ],
    }


def _verify_snapshots(folder: Path, *, as_json: bool) -> int:
    found: list[SnapshotCheck] = []
    for check in verify_snapshots(folder):
        found.append(check)
        if not as_json:
            state = "damaged" if check.flaws else "whole"
            about = "" if check.topic is None else f" of {check.topic}, version {check.version}"
            latest = ", the latest" if check.is_latest else ""
            print(f"{check.path}: {state}{about}, {check.files} files, {size_text(check.nbytes)}{latest}")
            for path, problem in check.flaws:
                print(f"  damaged: {path.name}: {problem}")
    whole = not any(check.flaws for check in found)
    if as_json:
        snapshots = [
            {
                "path": str(check.path),
                "topic": check.topic,
                "version": check.version,
                "latest": check.is_latest,
                "whole": not check.flaws,
                "files": check.files,
                "bytes": check.nbytes,
                "damaged": [{"file": str(path), "problem": problem} for path, problem in check.flaws],
            }
            for check in found
        ]
        print_json({"kind": "snapshots", "folder": str(folder), "whole": whole, "snapshots": snapshots})
    else:
        print(f"{folder}: {'whole' if whole else 'damaged'}")
    return 0 if whole else 1
