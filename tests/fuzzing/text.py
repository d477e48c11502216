"""Text that a person or another program hands in: vectors, receipts, options, URLs, settings, histories."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path

from fuzzing.log import folder
from fuzzing.target import Target
from paramstream.cli import options
from paramstream.cli.main import DONE, WRONG_USAGE, make_parser
from paramstream.consistency.history import encode_line, read_lines
from paramstream.consistency.vector import VersionVector
from paramstream.errors import InvalidEvent, InvalidHistory
from paramstream.eventlog.kafka.settings import KafkaLog
from paramstream.eventlog.open import folder_of, open_log
from paramstream.events.codec import decode_vector, encode_vector
from paramstream.producers.receipt import Receipt
from paramstream.tiers.sizes import parse_size
from paramstream.transport.sockets import is_local

VECTOR = "model/0=512:7,a%2Fb/3=1:0"


def text(data: bytes) -> str:
    """As it comes from a command line."""
    return data.decode(errors="surrogateescape")


def vector(data: bytes) -> None:
    """What is parsed can be written, sent and kept."""
    found = VersionVector.parse(text(data))
    assert VersionVector.parse(str(found)) == found
    by_id: VersionVector[int] = VersionVector({(7, number): at for (_, number), at in found.items()})
    assert decode_vector(encode_vector(by_id)) == by_id


def receipt(data: bytes) -> None:
    found = Receipt.parse(text(data))
    again = Receipt.parse(str(found))
    assert again.record() == found.record() and str(again) == str(found)


def receipts() -> Iterable[bytes]:
    from paramstream.events.kinds import PartRef
    from paramstream.producers.receipt import ReceiptRecord

    where = VersionVector.parse(VECTOR)
    for parts in ((), (PartRef("trainer 0;", 3, 4), PartRef("trainer 0;", 3, 5))):
        for version in (None, 7):
            yield str(Receipt(None, None, ReceiptRecord("trainer 0;", 3, version, where, where, parts))).encode()


def size(data: bytes) -> None:
    assert parse_size(text(data)) >= 0


TYPES: tuple[Callable[[str], object], ...] = (
    options.size, options.version, options.vector, options.zoned_time, options.positive, options.seconds,
)  # fmt: skip


def option(data: bytes) -> None:
    """The first byte says which option's value it is."""
    TYPES[(data[0] if data else 0) % len(TYPES)](text(data[1:]))


def option_texts() -> Iterable[bytes]:
    values = "4.5GiB", "7", VECTOR, "2026-03-04T05:06:07Z", "12", "0.5"
    return [bytes([number]) + value.encode() for number, value in enumerate(values)]


@cache
def parser() -> argparse.ArgumentParser:
    """It keeps nothing of what it parses."""
    return make_parser()


def command_line(data: bytes) -> None:
    """Words, one a line, as the command `paramstream` gets them: taken, or refused with usage. Nothing is run."""
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            parser().parse_args(text(data).split("\n"))
    except SystemExit as ended:
        assert ended.code in (DONE, WRONG_USAGE)


def command_lines() -> Iterable[bytes]:
    where = "--connect\ntcp://127.0.0.1:1"
    for line in (
        "broker\n--bind\ntcp://127.0.0.1:0\n--log\nfile:log\n--log-limit\n4GiB",
        f"topics\ncreate\none\n--partitions\n3\n{where}",
        f"publish\nx.safetensors\n{where}\n--topic\nt\n--version\n7",
        f"subscribe\n{where}\n--topic\nt\n--start\n{VECTOR}\n--count\n3",
        f"replica\n{where}\n--topic\nt\n--dram\n1.5GiB",
        "restore\n--log\nfile:d\n--topic\nt\n--out\nf\n--time\n2026-03-04T05:06:07Z",
        f"process\nmodule:step\n{where}\n--name\nn\n--state\nd\n--timeout\n3",
    ):
        yield line.encode()


def log_url(data: bytes) -> None:
    where = text(data)
    if not where.startswith("file:"):
        if not where.startswith("kafka:"):
            open_log(where).close()
        KafkaLog.from_url(where)
    with suppress(OSError):  # A name may be too long for a file system: that is told where it is used.
        folder_of(where).exists()


def address(data: bytes) -> None:
    is_local(text(data))


CONFIG = b"""bootstrap_servers = ["kafka-1:9092", "kafka-2:9092"]
replication_factor = 3
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
sasl_plain_username = "user"
sasl_plain_password = "secret"
request_timeout_s = 5.0
"""


def kafka_config(data: bytes) -> None:
    with folder() as name:
        path = Path(name, "kafka.toml")
        path.write_bytes(data)
        found = KafkaLog.from_file(path, {})
        assert KafkaLog.decode(found.encode()) == found
        assert "secret" not in repr(found)


def history(data: bytes) -> None:
    with folder() as name:
        path, again = Path(name, "history.jsonl"), Path(name, "again.jsonl")
        path.write_bytes(data)
        lines = [line for _, line in read_lines(path)]
        again.write_bytes(b"".join(map(encode_line, lines)))
        assert [encode_line(line) for _, line in read_lines(again)] == [encode_line(line) for line in lines]


HISTORY = b"""{"process": "t0", "op": "w", "key": "x", "value": 1}
{"process": "r1", "op": "r", "key": "x", "value": null}
{"process": "t0", "op": "lost", "key": "x", "value": "v"}
{"process": "r1", "op": "follow", "ordering": "causal", "partition": "model/0", "position": 7}
{"process": "r1", "op": "apply", "partition": "model/0", "position": 8, "own": {"model/1": 3}, "observed": {}}
"""

TARGETS = (
    Target("vector-text", vector, lambda: [VECTOR.encode(), b""], errors=(InvalidEvent,)),
    Target("receipt", receipt, receipts, errors=(InvalidEvent,)),
    Target("size", size, lambda: [b"4GiB", b"1.5 MB", b"17"], errors=(ValueError,)),
    Target("option", option, option_texts, errors=(argparse.ArgumentTypeError,)),
    Target("command-line", command_line, command_lines, errors=(), fixed_bytes=4 << 20, examples=15),
    Target(
        "log-url",
        log_url,
        lambda: [b"file:/tmp/log", b"file:///tmp/log", b"file:~/log", b"kafka://h:1,[::1]:2", b"memory:"],
        errors=(InvalidEvent,),
    ),
    Target("address", address, lambda: [b"tcp://127.0.0.1:7777", b"tcp://[::1]:7", b"ipc:///tmp/x", b"tcp://*:0"]),
    Target("kafka-config", kafka_config, lambda: [CONFIG], errors=(InvalidEvent,)),
    Target("history", history, lambda: [HISTORY, *HISTORY.splitlines()], errors=(InvalidHistory,)),
)
