"""`paramstream verify`: what of a log or of snapshots is whole, what is damaged, and where."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..consistency.position import show
from ..consumers.snapshots.verifying import SnapshotCheck, is_snapshot_folder, verify_snapshots
from ..eventlog.local import META
from ..eventlog.verifying import PartitionCheck, verify_log
from ..tiers.sizes import size_text
from .options import add_json
from .output import print_json

NAME: str = "verify"
HELP: str = "read a log or snapshots as a whole, and name what is damaged; exit code 1 where anything is"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="DIR_OR_LOG",
        help='the folder of a log (also as "file:DIR") or of snapshots; the broker of a log may be running',
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.folder.removeprefix("file:").removeprefix("snapshot:")).expanduser()
    if (folder / META).is_file() or not is_snapshot_folder(folder):
        return _verify_log(folder, as_json=arguments.json)
    return _verify_snapshots(folder, as_json=arguments.json)


def _verify_log(folder: Path, *, as_json: bool) -> int:
    found: list[PartitionCheck] = []
    for check in verify_log(folder):
        found.append(check)
        if not as_json:
            print(_partition_line(check))
            for flaw in check.flaws:
                at = "" if flaw.position is None else f", behind position {show(flaw.position)}"
                print(f"  damaged: {flaw.path} at offset {flaw.offset}{at}: {flaw.problem}")
            if check.torn:
                print(f"  torn, and cut by the next owner: {check.torn}")
    whole = not any(check.flaws for check in found)
    if as_json:
        print_json({"kind": "log", "folder": str(folder), "whole": whole, "partitions": [_as_json(c) for c in found]})
    else:
        print(f"{folder}: {'whole' if whole else 'damaged'}")
    return 0 if whole else 1


def _partition_line(check: PartitionCheck) -> str:
    topic, number = check.partition
    state = "damaged" if check.flaws else "whole"
    return (
        f"{topic:016x}-{number}: {state}, {check.records} records in {check.files} files, {size_text(check.nbytes)}, "
        f"behind {show(check.first)} to {show(check.last)}"
    )


def _as_json(check: PartitionCheck) -> dict[str, object]:
    return {
        "topic_id": f"{check.partition[0]:016x}",
        "partition": check.partition[1],
        "whole": not check.flaws,
        "files": check.files,
        "records": check.records,
        "bytes": check.nbytes,
        "first": show(check.first),
        "last": show(check.last),
        "torn": check.torn,
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
