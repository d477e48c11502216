"""A replica that keeps its state over and over: `python -m processes.resumed_replica ENDPOINT TOPIC FOLDER`.

It resumes from FOLDER, says `began` with the position that it had there, and answers `wait` (a vector) with its digest.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import paramstream as ps

from .lines import Lines, say


def main(endpoint: str, topic: str, folder: Path) -> None:
    held = next(iter(sorted(folder.rglob("latest"))), None)
    with ps.connect(endpoint, timeout=30) as client:
        replica = client.replica(topic, name="kept", start="resume", snapshot_dir=folder, timeout=30)
        say(began=held is not None)
        ending = threading.Event()

        def keep() -> None:
            while not ending.is_set():
                made = replica.snapshot(timeout=30)
                say(kept=made[0].path.name)

        keeping = threading.Thread(target=keep)
        keeping.start()
        lines = Lines(0)
        try:
            while True:
                asked = lines.next(120)
                assert asked is not None
                replica.wait(ps.VersionVector.parse(asked["vector"]), 30)
                say(digest=replica.digest())
        except EOFError:
            ending.set()
            keeping.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
