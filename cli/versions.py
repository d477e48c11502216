"""`paramstream versions`: the sealed versions of a topic."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ..client import connect
from ..consistency.position import show
from ..consumers.version_info import VersionInfo
from ..tiers.sizes import size_text
from .options import add_connect, add_json, add_topic
from .output import print_json, print_table

NAME: str = "versions"
HELP: str = "list the sealed versions of a topic, oldest commit first"


def configure(parser: argparse.ArgumentParser) -> None:
    add_connect(parser)
    add_topic(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    with connect(arguments.connect) as client:
        versions = client.versions(arguments.topic)
    if arguments.json:
        print_json({"topic": arguments.topic, "versions": [version_record(version) for version in versions]})
        return 0
    print_table(
        ("version", "position", "sequenced", "tensors", "size", "digest", "restorable"),
        [
            (
                version.version,
                show(version.position),
                version.time.isoformat(timespec="microseconds"),
                version.tensors,
                size_text(version.bytes),
                version.digest,
                "yes" if version.restorable else "superseded" if version.superseded else "no",
            )
            for version in versions
        ],
    )
    return 0


def version_record(version: VersionInfo) -> dict[str, object]:
    """As `--json` shows it: the time in ISO 8601."""
    return {**asdict(version), "time": version.time.isoformat()}
