"""`paramstream subscribe`: prints the events of a topic as they come."""

from __future__ import annotations

import argparse
import base64
import sys

from ..client import connect
from ..consistency.position import show
from ..consistency.vector import VersionVector
from ..consumers.events import Event
from .options import add_connect, add_json, add_topic, positive
from .output import print_json

NAME: str = "subscribe"
HELP: str = "print the events of a topic until interrupted"


def configure(parser: argparse.ArgumentParser) -> None:
    add_connect(parser)
    add_topic(parser)
    parser.add_argument(
        "--start",
        metavar="WHERE",
        type=_start,
        default="head",
        help='"head", "earliest", or a vector such as model/0=512:7 (default %(default)s)',
    )
    parser.add_argument("--ordering", choices=("causal", "pram"), default="causal", help="default %(default)s")
    parser.add_argument("--count", metavar="N", type=positive, help="end after so many events")
    add_json(parser, "print one JSON object an event, one a line")


def run(arguments: argparse.Namespace) -> int:
    with connect(arguments.connect) as client:
        events = client.subscribe(arguments.topic, ordering=arguments.ordering, start=arguments.start)
        try:
            # Somebody who pipes this must know from when on nothing is missed.
            print(f"subscribed to {arguments.topic}", file=sys.stderr, flush=True)
            for count, event in enumerate(events, 1):
                if arguments.json:
                    print_json(event_record(event))
                else:
                    print(event_line(event), flush=True)
                if count == arguments.count:
                    break
        finally:
            events.close()
    return 0


def event_record(event: Event) -> dict[str, object]:
    """An event as `--json` shows it. Bytes are text where they are UTF-8, else `{"base64": …}`; rows are told by their keys."""
    record: dict[str, object] = {
        "topic": event.topic,
        "partition": event.partition,
        "position": event.position,
        "kind": event.kind,
        "producer": event.producer,
        "incarnation": event.incarnation,
        "sequence": event.sequence,
        "time": event.time,
        "vector": str(event.vector),
    }
    return record | _details(event)


def event_line(event: Event) -> str:
    """An event on one line for a person."""
    details = " ".join(f"{name}={_short(value)}" for name, value in _details(event).items() if value)
    where = f"{event.topic}/{event.partition} {show(event.position)}"
    return f"{where} {event.kind} by {event.producer or '-'} {details}".rstrip()


def _details(event: Event) -> dict[str, object]:
    """What an event of its kind carries."""
    keys: list[int] = [] if event.keys is None else [int(key) for key in event.keys]
    match event.kind:
        case "put":
            return {
                "items": [{"key": _text(key), "value": _text(value), "ttl": ttl} for key, value, ttl in event.items]
            }
        case "delete":
            return {"keys": [_text(key) for key, _, _ in event.items]}
        case "rows" | "delete_rows" | "gradients":
            return {"table": event.table, "keys": keys}
        case "dense_gradients":
            names = list(dict.fromkeys(piece.name for piece in event.slices))
            return {"step": event.version, "number": event.number, "count": event.count, "names": names}
        case "chunk":
            return {"version": event.version, "name": event.name}
        case "part" | "commit":
            return {"version": event.version, "name": event.name, "digest": event.digest}
        case _:
            return {}


def _text(data: bytes | None) -> object:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data or b"").decode()}


def _short(value: object, most: int = 60) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _start(text: str) -> str | VersionVector[str]:
    if text in ("head", "earliest"):
        return text
    try:
        return VersionVector.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
