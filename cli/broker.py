"""`paramstream broker`: a broker that stands until it is told to stop."""

from __future__ import annotations

import argparse

from ..brokers.broker import Broker
from ..eventlog.kafka.settings import SCHEME, KafkaLog
from .options import add_json, add_kafka_config, log_of, size
from .output import print_json
from .standing import StopSignal, favour_small_events, keep_freed_memory

NAME: str = "broker"
HELP: str = "run a broker until SIGTERM or SIGINT"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bind",
        metavar="ADDR",
        default="tcp://127.0.0.1:7777",
        help="where to listen (default %(default)s; port 0: any)",
    )
    parser.add_argument(
        "--log",
        metavar="URL",
        help='"memory:", "file:DIR" or "kafka://HOST:PORT[,HOST:PORT]" (default memory:, or what --kafka-config names)',
    )
    add_kafka_config(parser)
    parser.add_argument(
        "--log-limit",
        metavar="SIZE",
        type=size,
        help="hard limit of all the log holds (default 4GiB in memory, 64GiB on disk and in Kafka)",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="allow an address beyond this machine, where anybody may then read and write",
    )
    parser.add_argument(
        "--keeper",
        metavar="DIR",
        help="run a replica beside the broker that keeps snapshots there, so that rows and KV may leave the log",
    )
    parser.add_argument(
        "--advertise",
        metavar="ADDR",
        help="the address that clients are told by other brokers over the same Kafka, where it is not the one bound",
    )
    parser.add_argument(
        "--name",
        metavar="N",
        help="its own among the brokers over one Kafka, the same at each start (default: its address)",
    )
    add_json(parser, 'print {"listening": ADDR} on one line')


def run(arguments: argparse.Namespace) -> int:
    # Before anything starts: a signal that comes early stops the broker as well.
    stop = StopSignal()
    favour_small_events()
    log = log_of(arguments) or "memory:"
    if isinstance(log, KafkaLog) or log.startswith(f"{SCHEME}:"):
        # What goes to Kafka is put together anew for each batch; other logs keep what they are given.
        keep_freed_memory()
    with Broker(
        bind=arguments.bind,
        log=log,
        insecure=arguments.insecure,
        keeper=arguments.keeper,
        log_limit=arguments.log_limit,
        name=arguments.name,
        advertise=arguments.advertise,
    ) as broker:
        if arguments.json:
            print_json({"listening": broker.endpoint})
        else:
            print(f"listening on {broker.endpoint}", flush=True)
        stop.wait()
    return 0
