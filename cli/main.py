"""`paramstream`: one command for each thing that is done without writing a program.

Exit codes: 0 done, 1 failed (what failed stands on standard error), 2 wrong usage. `PARAMSTREAM_LOG=debug` shows logs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Protocol

from ..errors import ParamstreamError
from . import (
    bench,
    broker,
    check,
    process,
    publish,
    replica,
    restore,
    snapshot,
    subscribe,
    top,
    topics,
    verify,
    versions,
)
from .demo import command as demo
from .logs import set_up_logs

DONE, FAILED, WRONG_USAGE = 0, 1, 2


class Command(Protocol):
    """A module that is a command."""

    NAME: str
    HELP: str
    """One line for `paramstream --help`."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Does it and returns the exit code. Raises `ParamstreamError` or `OSError` for what failed."""
        ...


COMMANDS: tuple[Command, ...] = (
    demo,
    broker,
    topics,
    versions,
    publish,
    subscribe,
    replica,
    process,
    restore,
    snapshot,
    verify,
    check,
    top,
    bench,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (without the program's name; default: this process's) and returns the exit code."""
    try:
        arguments = make_parser().parse_args(argv)
    except SystemExit as ended:
        # argparse has printed help (0) or what is wrong (2).
        return ended.code if isinstance(ended.code, int) else WRONG_USAGE
    set_up_logs()
    if isinstance(sys.stdout, TextIOWrapper):
        # A name that this terminal's encoding lacks is written as an escape; standard error does so by itself.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = arguments.run(arguments)
        print(end="", flush=True)  # Unlike `sys.stdout.flush`, where that was closed, too.
    except ParamstreamError as error:
        print(f"paramstream: {error.code}: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        # The reader of our output went away (`| head`). What is left in the buffer goes nowhere, quietly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        print(f"paramstream: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("paramstream: interrupted", file=sys.stderr)
        return FAILED
    return code


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paramstream",
        description="One stream for model parameters: publish, follow and replay versions of weights, rows and KV.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong usage. PARAMSTREAM_LOG=debug shows logs.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        child = commands.add_parser(command.NAME, help=command.HELP, description=command.HELP, allow_abbrev=False)
        command.configure(child)
        child.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
