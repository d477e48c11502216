"""`paramstream process`: runs a processor until it is told to stop."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from ..client import connect
from ..consumers.processors.processor import Processor
from ..consumers.processors.run import ProcessorRun
from ..errors import InvalidEvent
from .options import add_connect, add_timeout
from .standing import StopSignal

NAME: str = "process"
HELP: str = "run a processor, events in and events out, until SIGTERM or SIGINT"

LOOK_S = 0.2
"""How long a signal may wait for the processor to be looked at."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "processor",
        metavar="MODULE:FUNCTION",
        type=_place,
        help="a function decorated with @ps.processor, in a module of this folder or an installed one",
    )
    add_connect(parser)
    parser.add_argument("--name", metavar="N", required=True, help="its name, which has one live owner")
    parser.add_argument("--state", metavar="DIR", type=Path, required=True, help="the folder of its state, its own")
    add_timeout(parser)


def run(arguments: argparse.Namespace) -> int:
    processor = _load(*arguments.processor)
    stop = StopSignal()
    with (
        connect(arguments.connect) as client,
        client.run(processor, name=arguments.name, state=arguments.state, timeout=arguments.timeout) as running,
    ):
        print(f"{arguments.name} turns {processor.source} into {processor.sink}", flush=True)
        _stand(running, stop)
    return 0


def _stand(running: ProcessorRun, stop: StopSignal) -> None:
    """Until the signal. Raises the error of a task that has ended."""
    while not stop.wait(0):
        running.wait(LOOK_S)


def _load(module: str, name: str) -> Processor:
    """Raises `InvalidEvent` where there is no such module, or no such processor in it."""
    # As Python itself does for a script: the user's own modules lie where the user stands.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: object = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise InvalidEvent(f"there is no module {module!r}", remedy="Go to its folder, or install it") from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Processor):
        raise InvalidEvent(
            f"{module} has no processor {name!r}",
            remedy="Decorate the function with @ps.processor(source=..., sink=...)",
        )
    return found


def _place(text: str) -> tuple[str, str]:
    module, separator, name = text.partition(":")
    if not separator or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise argparse.ArgumentTypeError(f"MODULE:FUNCTION is needed, such as counters:step, not {text!r}")
    return module, name
