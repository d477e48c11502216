"""`paramstream restore`: a version of a topic, from a log, a broker or a snapshot, becomes a safetensors file."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ..brokers import registry
from ..consumers.restore import restore
from ..tiers.sizes import size_text
from ..tiers.store import TieredStore
from .checkpoints import write_checkpoint
from .options import add_json, add_kafka_config, add_topic, log_of, size, vector, version, zoned_time
from .output import Progress, print_json

NAME: str = "restore"
HELP: str = "restore a version from a log, a broker or a snapshot into a safetensors file"


def configure(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--log",
        metavar="URL",
        help='"file:DIR" or "kafka://HOST:PORT", the log, whose broker may be running; or "snapshot:DIR", snapshots alone',
    )
    source.add_argument("--connect", metavar="ADDR", help="a broker, such as tcp://127.0.0.1:7777")
    add_kafka_config(parser)
    add_topic(parser)
    moment = parser.add_mutually_exclusive_group()
    moment.add_argument("--at", metavar="VERSION", type=version, help="the version (default: the newest)")
    moment.add_argument(
        "--vector",
        metavar="VECTOR",
        type=vector,
        help="the newest version at a vector, TOPIC/PARTITION=EPOCH:OFFSET,...",
    )
    moment.add_argument("--time", metavar="TIME", type=zoned_time, help="the newest version at a time, in ISO 8601")
    parser.add_argument(
        "--snapshots", metavar="DIR", type=Path, help="where to look for a version that the log no longer has"
    )
    parser.add_argument(
        "--out", metavar="FILE", type=Path, required=True, help="the file to write, replaced as a whole"
    )
    parser.add_argument(
        "--dram", metavar="SIZE", type=size, default="1TiB", help="budget of memory (default: what the version needs)"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    with (
        TieredStore(dram=arguments.dram) as store,
        Progress(f"reading {arguments.topic}", 0) as reading,
        restore(
            arguments.connect or log_of(arguments),
            arguments.topic,
            next((at for at in (arguments.at, arguments.vector, arguments.time) if at is not None), None),
            store,
            dense_only=True,
            snapshots=arguments.snapshots,
            registry=registry,
            arrays="numpy",
            progress=reading.add,
        ) as replica,
    ):
        weights = replica.weights()
        total = sum(array.nbytes for array in weights.values())
        about = {"format": "pt", "topic": weights.topic, "version": str(weights.version), "digest": weights.digest}
        with Progress(f"writing {arguments.out}", total) as writing:
            nbytes = write_checkpoint(arguments.out, weights, about, writing.add)
    if arguments.json:
        print_json(
            {
                "topic": arguments.topic,
                "version": weights.version,
                "tensors": len(weights),
                "bytes": total,
                "digest": weights.digest,
                "out": str(arguments.out),
                "seconds": round(time.monotonic() - began, 3),
            }
        )
    else:
        print(
            f"restored version {weights.version} of {arguments.topic} into {arguments.out}: "
            f"{len(weights)} tensors, {size_text(nbytes)}, digest {weights.digest}"
        )
    return 0
