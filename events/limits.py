"""Every limit of an event in one place, with its unit and reason. Checked before a byte leaves and before a length is believed."""

from __future__ import annotations

from ..errors import InvalidEvent

MAX_EVENT_BYTES = 896 * 1024
"""An encoded event. A default Kafka broker refuses a batch of 1 MiB *including* its overhead; this leaves room for it."""

MAX_CHUNK_BYTES = 832 * 1024
"""Tensor bytes in one chunk event: near the frame size at which ZeroMQ is fastest, with room for head and segment names."""

MAX_NAME_BYTES = 512
"""UTF-8 bytes of the name of a tensor, topic, table, producer or replica."""

MAX_KEY_BYTES = 4 * 1024
"""A KV key."""

MAX_VALUE_BYTES = 768 * 1024
"""A KV value: one operation must fit an event, beside its key and vectors."""

MAX_TENSOR_BYTES = 1 << 48
"""256 TiB, dimensions of 0 not counted: more than any machine holds, and sums of such sizes still fit 64 bits."""

MAX_RANK = 32
"""Dimensions of a tensor, numpy's own limit before 2.0."""

MAX_VERSION = (1 << 63) - 1

MAX_TTL_NS = 100 * 365 * 24 * 3600 * 10**9
"""A century: what is longer is meant to be for ever, and would overflow a deadline."""


def check_name(what: str, name: object) -> str:
    """`name` if it is a usable name: opaque UTF-8, not empty, not over the limit. Raises `InvalidEvent` naming it."""
    if not isinstance(name, str):
        raise InvalidEvent(f"a {what} name must be a str, not {type(name).__name__}")
    try:
        nbytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidEvent(f"the {what} name {name!r} is not valid UTF-8", item=repr(name)) from error
    if not name:
        raise InvalidEvent(f"a {what} name must not be empty")
    if nbytes > MAX_NAME_BYTES:
        raise InvalidEvent(
            f"the {what} name is {nbytes} bytes long, the limit is {MAX_NAME_BYTES}",
            item=name[:64],
            remedy="Shorten the name",
        )
    return name


def check_version(version: object) -> int:
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= MAX_VERSION:
        raise InvalidEvent(f"a version is an int from 0 to 2**63 - 1, not {version!r}")
    return version
