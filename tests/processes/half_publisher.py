"""A publisher that stops inside a publish: `python -m processes.half_publisher ENDPOINT TOPIC VERSION CHUNKS [part]`.

It says `sent` once that many chunks are on their way, and then never goes on. With `part` the publish would not have sealed.
"""

from __future__ import annotations

import sys
import threading
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

import paramstream as ps
from paramstream.producers.calls import Call, Draft
from paramstream.producers.session import Session

from .lines import say

TENSORS = 5
ELEMENTS = 200_000
"""Of one tensor: 800 kB, a chunk of its own."""


def weights_of(version: int) -> dict[str, npt.NDArray[np.float32]]:
    return {f"layer.{number}": np.full(ELEMENTS, version, np.float32) for number in range(TENSORS)}


def main(endpoint: str, topic: str, version: int, chunks: int, seal: bool) -> None:
    publisher = ps.connect(endpoint, timeout=30).publisher(topic, producer="trainer")
    add, sent = Session.add, 0

    def stopping(session: Session, call: Call, draft: Draft, timeout: float) -> int:
        nonlocal sent
        if sent == chunks:
            say(sent=sent)
            threading.Event().wait()
        sent += 1
        return add(session, call, draft, timeout)

    with patch.object(Session, "add", stopping):
        publisher.publish_weights(weights_of(version), version, seal=seal)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), "part" not in sys.argv[5:])
