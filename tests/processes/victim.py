"""A broker over a local log in a process of its own, which a test kills and starts again at the same endpoint."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import paramstream as ps

from .child import Child
from .local_home import LOG_LIMIT
from .logs import read_folder
from .power import cut_back
from .reference import Reference
from .world import START_S, free_port

ASK_S = 30.0


class Victim:
    """As a context manager it is killed at the end, if it was not before."""

    def __init__(self, folder: Path) -> None:
        """Its log is the folder `log` in `folder`."""
        self.folder = folder / "log"
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self._errors = folder / "broker.stderr"
        self._boots = 0
        self._child = self._start(0)

    def hold_syncs(self) -> None:
        """Nothing that is accepted from now on becomes durable, until the broker dies."""
        self._child.ask("hold", ASK_S)

    def die(self, *, power: bool = False) -> None:
        """SIGKILL. With `power` the files fall back to their last sync, and the next start is of another boot."""
        self._child.kill()
        if power:
            self._boots += 1
            cut_back(self.folder)

    def stop(self) -> None:
        """A clean stop."""
        self._child.end(ASK_S)

    def start_again(self, clock_s: float = 0) -> None:
        """At the same endpoint, with a clock that is `clock_s` ahead."""
        self._child = self._start(clock_s)

    def log(self, client: ps.Client, name: str = "model") -> Reference:
        """What its log holds of the topic and is durable."""
        (topic,) = [topic for topic in client.topics() if topic.name == name]
        return read_folder(self.folder, topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()

    def _start(self, clock_s: float) -> Child:
        boot = f"boot-{self._boots}"
        child = Child("broker", self.folder, self.endpoint, boot, LOG_LIMIT, clock_s, errors=self._errors)
        try:
            child.read(START_S)
        except BaseException:
            child.kill()
            raise
        return child
