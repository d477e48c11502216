"""A broker's keeper: a replica in a process of its own, which makes the snapshots that let rows and KV leave the log.

The broker starts it and stops it, by its own process id, and starts it again if it ends by itself. It ends with the broker even if
that is killed: it looks for its parent. It says on its standard output what keeps it from its work, one JSON object a line.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from .keeper_files import identity_of

_log = logging.getLogger(__name__)

MODULE = "paramstream.cli.keeper"
RESTART_S = (0.5, 60.0)
"""First and longest pause before it is started again; it doubles with each time."""

STEADY_S = 60.0
"""A keeper that has lived so long begins with the first pause again."""


class Keeper:
    """The process and the thread that watches it."""

    def __init__(self, folder: Path, endpoint: str, broker: str, changelogs: bytes = b"") -> None:
        """Starts nothing yet. `changelogs` opens those of the log, where it has any. Raises `BindFailed` where the folder cannot be used."""
        self.folder = folder
        self._broker = broker
        self._changelogs = changelogs
        self.identity = identity_of(folder)
        self._endpoint = _reachable(endpoint)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="paramstream-keeper", daemon=True)

    @property
    def error(self) -> str:
        """What keeps it from its work; empty where nothing does. Any thread."""
        return self._error

    @property
    def pid(self) -> int | None:
        """Of the process that runs now, if one does. Any thread."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float) -> bool:
        """End the process and the thread. False where that took longer than `timeout` s."""
        deadline = time.monotonic() + timeout
        self._closing.set()
        with self._lock:
            if self._process is not None:
                self._process.terminate()
        if self._thread.ident is None:
            return True
        self._thread.join(max(0.0, (deadline - time.monotonic()) / 2))
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause_s = RESTART_S[0]
        while not self._closing.is_set():
            began = time.monotonic()
            ended = self._live()
            if self._closing.is_set():
                return
            if time.monotonic() - began > STEADY_S:
                pause_s = RESTART_S[0]
            self._tell(f"the keeper has ended ({ended}); it is started again in {pause_s:g} s")
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, RESTART_S[1])

    def _live(self) -> str:
        """One life of the process; returns how it ended."""
        command = [sys.executable, "-P", "-m", MODULE, "--connect", self._endpoint, "--dir", str(self.folder)]
        command += ["--identity", self.identity, "--parent", str(os.getpid())]
        if self._changelogs:
            command += ["--broker", self._broker, "--changelogs"]
        with self._lock:
            if self._closing.is_set():
                return "the broker closes"
            try:
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            except OSError as error:
                return f"it cannot be started: {error}"
            self._process = process
        assert process.stdin is not None and process.stdout is not None
        # Secrets stand in it, which an argument would show to everybody.
        with suppress(BrokenPipeError), process.stdin as settings:
            settings.write(self._changelogs.decode())
        with process.stdout as lines:
            for line in lines:
                self._heard(line)
        code = process.wait()
        return f"exit code {code}"

    def _heard(self, line: str) -> None:
        try:
            said = json.loads(line)
            error = str(said["error"])
        except (ValueError, TypeError, KeyError, RecursionError):
            error = f"the keeper said {line.strip()[:200]!r}"
        self._tell(error)

    def _tell(self, error: str) -> None:
        if error and error != self._error:
            _log.warning("the keeper in %s: %s", self.folder, error)
        self._error = error


def _reachable(endpoint: str) -> str:
    """The endpoint as this machine reaches it: a broker that listens everywhere listens on loopback too."""
    if not endpoint.startswith("tcp://"):
        return endpoint
    host = urlsplit(endpoint).hostname or ""
    loopback = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}.get(host)
    return endpoint if loopback is None else f"tcp://{loopback}:{endpoint.rpartition(':')[2]}"
