"""A child process as its test holds it: started, asked, killed by its own pid."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .lines import Line, Lines, encode

TESTS = Path(__file__).parents[1]


class ChildFailed(AssertionError):
    """A child ended, or did not answer in time; the text has the end of what it wrote to standard error."""


class Child:
    """`python -m processes.MODULE ARGUMENTS`. Its standard error goes to the file `errors`."""

    def __init__(self, module: str, *arguments: object, errors: Path) -> None:
        self.module = module
        self.errors = errors
        with errors.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"processes.{module}", *map(str, arguments)],
                cwd=TESTS,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._lines = Lines(self._stdout.fileno())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def rss_bytes(self) -> int:
        """Resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def check(self) -> None:
        """Raises `ChildFailed` where it has ended by itself."""
        if self._process.poll() is not None:
            raise ChildFailed(f"{self.module} ended with {self._process.returncode}: {self._last_words()}")

    def read(self, timeout: float) -> Line:
        """The next line that it says."""
        try:
            line = self._lines.next(timeout)
        except EOFError:
            self._process.wait(timeout)
            raise ChildFailed(f"{self.module} ended with {self._process.returncode}: {self._last_words()}") from None
        if line is None:
            raise ChildFailed(f"{self.module} said nothing for {timeout:g} s: {self._last_words()}")
        return line

    def ask(self, what: str, timeout: float, **fields: Any) -> Line:
        """Ask, and wait for the one line that answers."""
        self.send(what, **fields)
        return self.read(timeout)

    def send(self, what: str, **fields: Any) -> None:
        """Ask; the answer is for `read`."""
        os.write(self._stdin.fileno(), encode({"ask": what, **fields}))

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. Once it is, this does nothing more."""
        self._process.kill()
        self._process.wait(30)
        self._close_pipes()

    def end(self, timeout: float) -> None:
        """Let it end by itself: its standard input ends. Raises `ChildFailed` where it does not, or ends with an error."""
        self._stdin.close()
        deadline = time.monotonic() + timeout
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"{self.module} did not end within {timeout:g} s: {self._last_words()}") from None
        self._close_pipes()
        if code:
            raise ChildFailed(f"{self.module} ended with {code}: {self._last_words()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _close_pipes(self) -> None:
        self._stdin.close()
        self._stdout.close()

    def _last_words(self) -> str:
        return self.errors.read_text(errors="replace")[-2000:] or "(nothing on standard error)"
