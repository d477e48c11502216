"""Options that several commands share, and the types of what they take."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from ..consistency.vector import VersionVector
from ..eventlog.kafka.settings import PASSWORD_VARIABLE, KafkaLog
from ..events.limits import MAX_VERSION
from ..tiers.sizes import parse_size
from ..tiers.ssd import parse_ssd


def add_connect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connect", metavar="ADDR", required=True, help="a broker, such as tcp://127.0.0.1:7777")


def add_topic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="T", required=True, help="the topic's name")


def add_json(parser: argparse.ArgumentParser, what: str = "print one JSON object on one line") -> None:
    parser.add_argument("--json", action="store_true", help=what)


def add_history(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--history", metavar="FILE", type=Path, help=f"{what}, for `paramstream check`")


def add_kafka_config(parser: argparse.ArgumentParser) -> None:
    """Beside a `--log`; see `log_of`."""
    parser.add_argument(
        "--kafka-config",
        metavar="FILE",
        type=Path,
        help=f"a TOML file with settings of ps.KafkaLog; the password may stand in {PASSWORD_VARIABLE} instead",
    )


def log_of(arguments: argparse.Namespace) -> str | KafkaLog:
    """What `--log` and `--kafka-config` name; empty where neither is given. Servers in the URL go before those in the file."""
    url: str = arguments.log or ""
    return url if arguments.kafka_config is None else KafkaLog.from_file(arguments.kafka_config, url=url)


def add_timeout(parser: argparse.ArgumentParser, default_s: float = 30.0) -> None:
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=default_s,
        help=f"give up after so long (default {default_s:g})",
    )


def size(text: str) -> int:
    """Bytes, from a text such as `4GiB`."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def ssd(text: str) -> str:
    """The folder and the size of an SSD tier, as `DIR:SIZE`."""
    try:
        parse_ssd(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def version(text: str) -> int:
    """A version: an int from 0 to 2**63 - 1."""
    return _whole(text, 0, MAX_VERSION, "a version is a whole number from 0 to 2**63 - 1")


def vector(text: str) -> VersionVector[str]:
    """A version vector as `str` writes it: `topic/partition=epoch:offset`, comma-separated."""
    try:
        return VersionVector.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def zoned_time(text: str) -> datetime:
    """A time in ISO 8601, with a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in ISO 8601, such as 2026-03-04T05:06:07Z") from error
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} names no zone; a Z at its end stands for UTC")
    return moment


def positive(text: str) -> int:
    return _whole(text, 1, MAX_VERSION, "a whole number above 0 is needed")


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    # Written so that NaN fails too.
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"a number of seconds above 0 is needed, not {text!r}")
    return value


def _whole(text: str, least: int, most: int, problem: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{problem}, not {text!r}")
    return value
