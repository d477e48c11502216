"""A trainer that does as it is asked: `python -m processes.trainer ENDPOINT TOPIC NAME`.

`publish` a version, every element of which is `value`: answered with its outcome. `flood`: it puts `count` values, one right
behind the other, without an answer. `outcomes`: answered with those of the flood, by key.
"""

from __future__ import annotations

import sys

import paramstream as ps

from .lines import Lines, say
from .load import weights_of

PATIENCE_S = 3600.0
WITHIN_S = 30.0


def outcome_of(receipt: ps.Receipt) -> str:
    """ "durable", or the code of the error that it ended with."""
    try:
        receipt.durable.result(WITHIN_S)
    except ps.ParamstreamError as error:
        return error.code
    return "durable"


def published(pub: ps.Publisher, version: int, value: int) -> str:
    try:
        return outcome_of(pub.publish_weights(weights_of(value), version))
    except ps.ParamstreamError as error:
        return error.code


def put(pub: ps.Publisher, key: str, value: bytes) -> ps.Receipt | str:
    """The receipt, or the code of what the call raised."""
    try:
        return pub.put(key, value)
    except ps.ParamstreamError as error:
        return error.code


def main(endpoint: str, topic: str, name: str) -> None:
    client = ps.connect(endpoint, timeout=30)
    pub = client.publisher(topic, producer=name)
    flood: dict[str, ps.Receipt | str] = {}
    lines = Lines(0)
    say(up=True)
    try:
        while True:
            match lines.next(PATIENCE_S):
                case {"ask": "publish", "version": int(version), "value": int(value)}:
                    say(outcome=published(pub, version, value))
                case {"ask": "flood", "count": int(count)}:
                    for number in range(count):
                        flood[f"flood-{number}"] = put(pub, f"flood-{number}", f"from the first {number}".encode())
                case {"ask": "outcomes"}:
                    say(
                        outcomes={
                            key: each if isinstance(each, str) else outcome_of(each) for key, each in flood.items()
                        }
                    )
                case other:
                    raise AssertionError(other)
    except EOFError:
        client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
