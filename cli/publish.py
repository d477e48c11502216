"""`paramstream publish`: a checkpoint on disk becomes a version of a topic."""

from __future__ import annotations

import argparse
import os
import socket
import time
from pathlib import Path

from ..client import connect
from ..tiers.sizes import size_text
from .checkpoints import read_checkpoint
from .options import add_connect, add_json, add_timeout, add_topic, version
from .output import Progress, print_json

NAME: str = "publish"
HELP: str = "publish a safetensors file, or a folder of shards with its index, as one version"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=Path, help="a safetensors file, or a folder with *.index.json")
    add_connect(parser)
    add_topic(parser)
    parser.add_argument("--version", metavar="N", type=version, required=True, help="the version's number")
    parser.add_argument(
        "--create", action="store_true", help="create the topic with default settings where it is missing"
    )
    parser.add_argument(
        "--producer",
        metavar="NAME",
        default=f"publish-{socket.gethostname()}-{os.getpid()}",
        help="the producer's name",
    )
    parser.add_argument(
        "--replace-schema", action="store_true", help="names, shapes or dtypes change from this version on"
    )
    parser.add_argument(
        "--rewind",
        action="store_true",
        help="after a restore: the version supersedes every version of its number and above",
    )
    add_timeout(parser, 600.0)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    tensors = read_checkpoint(arguments.path)
    total = sum(tensor.nbytes for tensor in tensors.values())
    began = time.monotonic()
    with connect(arguments.connect) as client:
        if arguments.create:
            client.create_topic(arguments.topic, exist_ok=True)
        publisher = client.publisher(arguments.topic, producer=arguments.producer)
        with Progress(f"publishing {arguments.path}", total) as sending:
            receipt = publisher.publish_weights(
                tensors,
                arguments.version,
                schema="replace" if arguments.replace_schema else "same",
                rewind=arguments.rewind,
                timeout=arguments.timeout,
                progress=sending.add,
            )
        publisher.flush(arguments.timeout)
        # The last of the number: a rewind may have sealed it anew.
        sealed = [each for each in client.versions(arguments.topic) if each.version == arguments.version]
        digest = sealed[-1].digest if sealed else None
    took = time.monotonic() - began
    if arguments.json:
        print_json(
            {
                "topic": arguments.topic,
                "version": arguments.version,
                "tensors": len(tensors),
                "bytes": total,
                "digest": digest,
                "receipt": str(receipt),
                "seconds": round(took, 3),
            }
        )
    else:
        print(
            f"published version {arguments.version} of {arguments.topic}: "
            f"{len(tensors)} tensors, {size_text(total)} in {took:.1f} s, digest {digest}"
        )
    return 0
