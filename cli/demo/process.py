"""The parent's side of a child: started, heard, told, and always ended by its own process id."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...errors import ParamstreamError
from .messages import Order, Report, decode_report, encode

END_WITHIN_S = 30.0
"""How long a child may take to end when it is asked to, before it is killed."""
TOLD_BYTES = 2000
"""How much of what a child said on standard error goes into an error."""

Heard = tuple["Process", Report | None]
"""What a child reported; None where its output ended, as it does with its process."""


class Process:
    """A child that runs a module of the demo, with one core for its arithmetic."""

    def __init__(self, name: str, role: str, arguments: Sequence[str], folder: Path, heard: queue.Queue[Heard]) -> None:
        """`role` is the module's name. Its reports go into `heard`, its standard error into a file of `folder`."""
        self.name = name
        self._heard = heard
        self._errors = folder / f"{name}.stderr"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        # -P: what lies in the folder where the demo was started is nothing to import from. A session of its own: an
        # interrupt on the terminal reaches the parent, which ends its children.
        command = [sys.executable, "-P", "-m", f"{__package__}.{role}", *arguments]
        with self._errors.open("ab") as errors:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        self._listener = threading.Thread(target=self._listen, name=f"paramstream-demo-{name}", daemon=True)
        self._listener.start()

    def tell(self, order: Order) -> None:
        """Raises `ParamstreamError` where the child is gone."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(encode(order) + b"\n")
            self._popen.stdin.flush()
        except OSError as error:
            raise self.failure() from error

    def kill(self) -> None:
        """SIGKILL, as a machine that fails would; returns when the process is gone."""
        self._popen.kill()
        self._close()

    def end(self) -> int:
        """Waits until the child, told to finish, is gone; kills one that does not go. Returns its exit code."""
        try:
            self._popen.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
        return self._close()

    def failure(self) -> ParamstreamError:
        """What there is to say about a child that went, or said nothing, when it should not have."""
        code = self._popen.poll()
        said = self._errors.read_bytes()[-TOLD_BYTES:].decode(errors="replace").strip()
        state = "does not answer" if code is None else f"ended with exit code {code}"
        return ParamstreamError(f"the demo's {self.name} {state}" + (f"; it said:\n{said}" if said else ""))

    def _close(self) -> int:
        code = self._popen.wait()
        self._listener.join()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            # What was still on its way to a child that is gone goes nowhere.
            with contextlib.suppress(OSError):
                pipe.close()
        return code

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            try:
                self._heard.put((self, decode_report(line)))
            except msgspec.DecodeError:
                # The last line of a killed child may be half a line.
                break
        self._heard.put((self, None))
