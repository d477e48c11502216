"""The processes of the command line are quiet about what is not theirs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAYS = (
    "import logging; from paramstream.cli.logs import set_up_logs; set_up_logs();"
    "logging.getLogger('aiokafka.conn').error('theirs'); logging.getLogger('paramstream.eventlog').warning('ours')"
)


@pytest.mark.parametrize(("level", "said"), [(None, ["ours"]), ("warning", ["ours"]), ("debug", ["theirs", "ours"])])
def test_aiokafkas_own_lines_are_shown_at_debug_only_K10(level: str | None, said: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PARAMSTREAM_LOG"}
    if level is not None:
        environment["PARAMSTREAM_LOG"] = level
    done = subprocess.run(
        [sys.executable, "-c", SAYS], env=environment, check=False, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0
    assert [line.split()[-1] for line in done.stderr.splitlines()] == said
