"""The demo's course: who starts when, who is killed, and what must hold at the end. Every wait is bounded."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ...client import connect
from ...errors import ParamstreamError
from ...events.recording import HistoryFile
from .messages import Begin, Finish, Listening, Report
from .process import Heard, Process
from .results import Actor, Restart, Results
from .table import LiveTable

TOPIC = "digits"
REPLICAS = ("replica-0", "replica-1")
KILLED = "replica-1"
KILLED_AT, RESTARTED_AT = 0.4, 0.5
"""When the replica is killed and started again, as shares of the whole time."""
START_WITHIN_S = 120.0
"""For an interpreter that imports torch on a busy machine."""
FINISH_WITHIN_S = 90.0
RETAINED_VERSIONS = 8
HISTORY_SUFFIX = ".jsonl"


class Play:
    """One run of the demo. As a context manager it ends every child, however the block ends."""

    def __init__(self, folder: Path, seconds: float, history: HistoryFile | None = None) -> None:
        """`folder` is empty and holds the log, what children say on standard error, and the histories that they record where all of
        them are to be in `history` at the end.
        """
        self.results = Results(list(REPLICAS))
        self._folder = folder
        self._seconds = seconds
        self._history = history
        self._heard: queue.Queue[Heard] = queue.Queue()
        self._processes: dict[str, Process] = {}
        self._endpoint = ""
        self._began_at: float | None = None
        self._table = LiveTable()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._table.clear()
        for process in self._processes.values():
            process.kill()
        self._processes.clear()
        if self._history is not None:
            for recorded in sorted(self._folder.glob(f"*{HISTORY_SUFFIX}")):
                if not self._history.join(recorded):
                    raise self._history.error or OSError("the history is closed")

    def run(self) -> Results:
        """All of it. Raises `ParamstreamError` where a child fails or is too slow; unequal digests are left to the caller."""
        self._start_all()
        self._train_and_kill()
        self._finish()
        return self.results

    # --- the acts -----------------------------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        broker = self._start("broker", "broker", "--log", f"file:{self._folder / 'log'}")
        self._until(lambda: self._endpoint != "", START_WITHIN_S, broker)
        with connect(self._endpoint) as client:
            client.create_topic(TOPIC, retain_versions=RETAINED_VERSIONS)
        self._start_actor("trainer", "trainer")
        for name in REPLICAS:
            self._start_actor(name, "follower", "--name", name)
        for actor in self.results.actors:
            self._until_ready(actor)

    def _train_and_kill(self) -> None:
        """Training goes on for its time, and until the killed replica follows again."""
        self._processes["trainer"].tell(Begin())
        self._began_at = time.monotonic()
        self._watch(self._seconds * KILLED_AT)
        killed = self.results.replicas[KILLED]
        killed_at, killed_at_version = time.monotonic(), killed.version or 0
        self._processes.pop(KILLED).kill()
        self._drain()
        killed.gone("killed by SIGKILL")
        self._watch(self._seconds * (RESTARTED_AT - KILLED_AT))
        self._start_actor(KILLED, "follower", "--name", KILLED)
        killed.note = "killed by SIGKILL, coming back"
        self._until_ready(killed)
        self._until(lambda: killed.switches > 0, START_WITHIN_S, self._processes[KILLED])
        back_after_s = time.monotonic() - killed_at
        self.results.restart = Restart(KILLED, killed_at_version, killed.version or 0, back_after_s)
        killed.note = f"killed by SIGKILL at version {killed_at_version}, back after {back_after_s:.1f} s"
        self._watch(self._seconds - (time.monotonic() - self._began_at))

    def _finish(self) -> None:
        """A last version; everybody reaches it and says what it holds; then the processes end by themselves."""
        trainer = self.results.trainer
        self._end(trainer, Finish())
        assert trainer.finished is not None
        for replica in self.results.replicas.values():
            self._end(replica, Finish(trainer.finished.version))
        with connect(self._endpoint) as client:
            sealed = client.versions(TOPIC)
        if not sealed or sealed[-1].digest != trainer.finished.digest:
            raise ParamstreamError(
                "the broker's newest version is not what the trainer holds",
                topic=TOPIC,
                version=trainer.finished.version,
            )
        broker = self._processes["broker"]
        broker.tell(Finish())
        self._ended(broker)

    # --- what the acts are made of --------------------------------------------------------------------------------------------

    def _start(self, name: str, role: str, *arguments: str) -> Process:
        process = self._processes[name] = Process(name, role, arguments, self._folder, self._heard)
        return process

    def _start_actor(self, name: str, role: str, *arguments: str) -> None:
        if self._history is not None:
            arguments = (*arguments, "--history", str(self._folder / f"{name}{HISTORY_SUFFIX}"))
        self._start(name, role, "--connect", self._endpoint, "--topic", TOPIC, *arguments)

    def _until_ready(self, actor: Actor) -> None:
        self._until(lambda: actor.ready, START_WITHIN_S, self._processes[actor.name])

    def _end(self, actor: Actor, order: Finish) -> None:
        process = self._processes[actor.name]
        process.tell(order)
        self._until(lambda: actor.finished is not None, FINISH_WITHIN_S, process)
        self._ended(process)

    def _ended(self, process: Process) -> None:
        if process.end() != 0:
            raise process.failure()
        del self._processes[process.name]

    def _watch(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._hear(left)

    def _until(self, reached: Callable[[], bool], within_s: float, awaited: Process) -> None:
        deadline = time.monotonic() + within_s
        while not reached():
            left = deadline - time.monotonic()
            if left <= 0:
                raise awaited.failure()
            self._hear(left)

    def _drain(self) -> None:
        """Hear what was said before this moment."""
        while not self._heard.empty():
            self._hear(0)

    def _hear(self, within_s: float) -> None:
        """One report, or at most a tenth of a second; then the table is drawn."""
        try:
            process, report = self._heard.get(timeout=max(0.0, min(within_s, 0.1)))
        except queue.Empty:
            pass
        else:
            self._take(process, report)
        self._table.draw(self._title(), self.results)

    def _take(self, process: Process, report: Report | None) -> None:
        current = self._processes.get(process.name) is process
        if report is None:
            actor = next((actor for actor in self.results.actors if actor.name == process.name), None)
            if current and (actor is None or actor.finished is None):
                process.end()
                raise process.failure()
        elif isinstance(report, Listening):
            self._endpoint = report.endpoint
        elif current:
            self.results.take(process.name, report)

    def _title(self) -> str:
        if self._began_at is None:
            return "paramstream demo: starting a broker, a trainer and two replicas"
        passed = time.monotonic() - self._began_at
        where = f"broker at {self._endpoint} with a log on disk"
        if passed < self._seconds:
            return f"paramstream demo: {passed:.0f} of {self._seconds:g} s, {where}"
        return (
            f"paramstream demo: {'finishing' if self.results.restart else 'until the killed replica is back'}, {where}"
        )
