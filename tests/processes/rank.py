"""One rank of a trainer: `python -m processes.rank ENDPOINT TOPIC NUMBER`.

Asked to `publish` a version it stages its part, every element of which is the value asked for, and says the receipt as text.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

import paramstream as ps

from .lines import Lines, say

PATIENCE_S = 3600.0
SHAPES = {"layer.weight": (500, 450), "layer.bias": (7,)}
"""The larger one travels as two chunks."""


def part_of(number: int, value: float) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors of one rank, under names that are its own."""
    return {f"rank{number}.{name}": np.full(shape, value, dtype=np.float32) for name, shape in SHAPES.items()}


def main(endpoint: str, topic: str, number: int) -> None:
    client = ps.connect(endpoint, timeout=30)
    pub = client.publisher(topic, producer=f"rank-{number}")
    lines = Lines(0)
    say(up=True)
    try:
        while True:
            match lines.next(PATIENCE_S):
                case {"ask": "publish", "version": int(version), "value": float(value)}:
                    say(receipt=str(pub.publish_weights(part_of(number, value), version, seal=False)))
                case other:
                    raise AssertionError(other)
    except EOFError:
        client.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
