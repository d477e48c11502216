"""`paramstream demo`: weights flow from a trainer on real data to two replicas, one of which is killed and comes back."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ...errors import ParamstreamError
from ...events.recording import HistoryFile
from ..options import add_history, add_json, seconds
from ..output import print_json
from .play import Play
from .results import Results
from .table import lines

NAME: str = "demo"
HELP: str = "the main job by itself: a broker, a trainer on real data, two replicas, one killed and back"

NEEDED = ("torch", "sklearn")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", metavar="N", type=seconds, default=20.0, help="how long the trainer trains (default 20)"
    )
    add_history(parser, "append what trainer and replicas do to this file")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ParamstreamError(
            f"the demo needs {' and '.join(missing)}", remedy="pip install 'paramstream[torch,demo]'"
        )
    began_at = time.monotonic()
    with (
        _interrupted_by_sigterm(),
        _history_at(arguments.history) as history,
        tempfile.TemporaryDirectory(prefix="paramstream-demo-") as folder,
        Play(Path(folder), arguments.seconds, history) as play,
    ):
        results = play.run()
    record = results.record(time.monotonic() - began_at)
    if arguments.json:
        print_json(record)
    else:
        _print_summary(results)
    return 0 if results.digests_equal() else 1


def _print_summary(results: Results) -> None:
    print("\n".join(lines(results)))
    record = results.record(0.0)
    staleness = record["staleness_ms"]
    assert isinstance(staleness, dict)
    print(
        f"\n{record['versions']} versions; from publish to the replica's network "
        f"{staleness['p50']} ms (p50), {staleness['p99']} ms (p99)"
    )
    for actor in results.actors:
        digest = actor.finished.digest if actor.finished else "-"
        print(f"{actor.name:10} digest {digest}")
    print("all digests are equal" if results.digests_equal() else "DIGESTS DIFFER")


@contextmanager
def _history_at(path: Path | None) -> Generator[HistoryFile | None]:
    """Opened before anything is started. Raises `InvalidEvent`."""
    history = None if path is None else HistoryFile(path)
    try:
        yield history
    finally:
        if history is not None:
            history.close()


@contextmanager
def _interrupted_by_sigterm() -> Generator[None]:
    """SIGTERM unwinds this process as an interrupt does, so that children are ended and the folder is removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
