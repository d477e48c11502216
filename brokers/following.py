"""`__meta` as a broker knows it that does not own it: read from the log that the brokers share, and read on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from ..errors import ParamstreamError
from ..eventlog.log import SharedLog, Tail
from ..events.codec import EventFrame
from ..events.kinds import LOG_ONLY_KINDS
from .opening import make_room_for_meta
from .owned import META
from .posting import Post
from .state import PartitionState

_log = logging.getLogger(__name__)

POLL_S = 0.2
"""How long a new topic may be unknown where nobody asks for it."""

RETRY_S = 0.5
"""The pause after a read that failed."""


Told = Callable[[PartitionState | None, list[EventFrame]], None]


class MetaReader:
    """One thread that reads. `start`, `stop` and `ask` belong to the loop, and all answers are given there."""

    def __init__(self, log: SharedLog, post: Post) -> None:
        self._log = log
        self._post = post
        self._changed = threading.Condition()
        self._told: Told | None = None
        self._asked: list[Callable[[], None]] = []
        self._is_closing = False
        self._reading = 0
        """Grows with each `start`: what was read for an earlier one is told to nobody."""
        self._next = 0.0
        """When the log is looked at, though nobody asks."""
        self._tail: Tail | None = None
        """While reading goes well; the thread's own, as all below."""
        self._tail_of = 0
        """For which `_reading` that is."""
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="paramstream-meta", daemon=True)

    def open(self) -> None:
        self._thread.start()

    @property
    def is_reading(self) -> bool:
        return self._told is not None

    def start(self, told: Told) -> None:
        """Read all, then what comes: `told(state, records)` with a whole new state, or None and what goes on from the last one."""
        with self._changed:
            self._told, self._next = told, 0.0
            self._reading += 1
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._told = None
            self._changed.notify_all()

    def ask(self, then: Callable[[], None]) -> None:
        """`then` once all was read and told that stands in the log by now. While the log cannot be read, that waits."""
        with self._changed:
            self._asked.append(then)
            self._changed.notify_all()

    def close(self, timeout: float) -> bool:
        """False where a read took longer than `timeout` s."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- in its thread --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """One turn of the thread: read, and tell what is new and whoever has asked."""
        with self._changed:
            if self._tail_of != self._reading:
                self._tail_of, self._tail = self._reading, None
            asked, self._asked = self._asked, []
        try:
            state, records = self._read()
        except ParamstreamError as error:
            if not self._failed:
                _log.info("__meta cannot be read, and is tried again: %s", error)
            self._failed = True
            with self._changed:
                self._tail, self._next = None, time.monotonic() + RETRY_S
                self._asked = asked + self._asked
            return
        self._next, self._failed = time.monotonic() + POLL_S, False
        if state is not None or records or asked:
            self._post(partial(self._tell, self._tail_of, state, records, asked))

    def _run(self) -> None:
        while self._wait():
            self.look()

    def _wait(self) -> bool:
        """Wait until there is something to look for. False at the end."""
        with self._changed:
            while not self._is_closing:
                left_s = max(0.0, self._next - time.monotonic())
                if self._told is not None and (not left_s or (self._asked and self._tail is not None)):
                    return True
                self._changed.wait(None if self._told is None else left_s)
            return False

    def _read(self) -> tuple[PartitionState | None, list[EventFrame]]:
        """Everything up to the log's end: anew where the log was not open, else what has come since."""
        if self._tail is not None:
            return None, list(self._tail.read())
        make_room_for_meta(self._log)
        tail = self._log.follow(META)
        recovered = tail.recover()
        state = PartitionState()
        if recovered.base is not None:
            state = PartitionState.decode(recovered.base.bulk, recovered.base.position)
        for record in recovered.records:
            if record.kind not in LOG_ONLY_KINDS:
                state.replay(record, registry=True)
        self._tail = tail
        return state, []

    # --- in the loop ----------------------------------------------------------------------------------------------------

    def _tell(
        self, serial: int, state: PartitionState | None, records: list[EventFrame], asked: list[Callable[[], None]]
    ) -> None:
        if serial == self._reading and self._told is not None and (state is not None or records):
            self._told(state, records)
        for then in asked:
            then()
