"""The same rows in a Redis on a unix socket, written by MSET and read by MGET.

`PARAMSTREAM_REDIS` names a redis-server, else the one on the PATH is taken; without one there is nothing to compare with. Commands are
made beforehand and answers are not taken apart: it is Redis and the socket that are timed, not a client in Python.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

ROWS_A_COMMAND = 1024
STARTS_S = 10.0


def redis_server() -> str | None:
    """The program, None where there is none."""
    return os.environ.get("PARAMSTREAM_REDIS") or shutil.which("redis-server")


class RedisRows:
    """A server of its own, without persistence, and one connection to it."""

    def __init__(self, program: str) -> None:
        self._opened = ExitStack()
        try:
            folder = self._opened.enter_context(tempfile.TemporaryDirectory(prefix="redis-"))
            path = str(Path(folder, "socket"))
            command = [
                program,
                "--port",
                "0",
                "--unixsocket",
                path,
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
                folder,
            ]
            server = self._opened.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            self._opened.callback(server.terminate)
            self._socket = self._opened.enter_context(socket.socket(socket.AF_UNIX))
            deadline = time.monotonic() + STARTS_S
            while self._socket.connect_ex(path):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{program} did not start within {STARTS_S:g} s")
                time.sleep(0.01)
        except BaseException:
            self._opened.close()
            raise

    def write_s(self, keys: NDArray[np.int64], rows: NDArray[np.float32]) -> float:
        """Seconds to set the rows, several commands on the way at a time."""
        commands = [
            _command(b"MSET", [part for pair in zip(*some, strict=True) for part in pair])
            for some in _pieces(_parts(keys), _parts(rows))
        ]
        return self._timed(commands, [5] * len(commands))

    def read_s(self, keys: NDArray[np.int64], row_nbytes: int) -> float:
        """Seconds to get the rows, all of which are there."""
        commands, answers = list[bytes](), list[int]()
        for (some,) in _pieces(_parts(keys)):
            commands.append(_command(b"MGET", some))
            answers.append(len(b"*%d\r\n" % len(some)) + len(some) * (len(b"$%d\r\n\r\n" % row_nbytes) + row_nbytes))
        return self._timed(commands, answers)

    def _timed(self, commands: list[bytes], answers: list[int]) -> float:
        """Keeps two commands on the way, so that the server never waits for the client."""
        into = memoryview(bytearray(1 << 20))
        began, expected = time.perf_counter(), 0
        for number, command in enumerate(commands):
            self._socket.sendall(command)
            expected += answers[number]
            if number:
                expected = self._take(expected, answers[number], into)
        self._take(expected, 0, into)
        return time.perf_counter() - began

    def _take(self, expected: int, leave: int, into: memoryview) -> int:
        while expected > leave:
            expected -= self._socket.recv_into(into, min(len(into), expected))
        return expected

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()


def _parts(array: NDArray[np.int64] | NDArray[np.float32]) -> list[bytes]:
    data = array.tobytes()
    size = len(data) // len(array)
    return [data[at : at + size] for at in range(0, len(data), size)]


def _pieces(*columns: list[bytes]) -> list[tuple[list[bytes], ...]]:
    return [
        tuple(column[at : at + ROWS_A_COMMAND] for column in columns)
        for at in range(0, len(columns[0]), ROWS_A_COMMAND)
    ]


def _command(name: bytes, arguments: list[bytes]) -> bytes:
    parts = [name, *arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
