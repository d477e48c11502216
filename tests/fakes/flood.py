"""Puts that go on and on in threads, while a test does something to the brokers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Self

import paramstream as ps
from reference.waiting import eventually

WAIT_S = 30.0
BEHIND = 50
"""So many puts may be without their answer."""


class Flood:
    """Publishes in a thread for each publisher, until it is left."""

    def __init__(self, publishers: Sequence[ps.Publisher]) -> None:
        self.receipts: list[ps.Receipt] = []
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(publisher,), name="paramstream-test-flood")
            for publisher in publishers
        ]

    def _run(self, publisher: ps.Publisher) -> None:
        while not self._done.is_set():
            number = len(self.receipts)
            if number >= BEHIND:
                # Lost or refused is an answer too.
                self.receipts[-BEHIND].accepted.exception(WAIT_S)
            self.receipts.append(publisher.put(f"key-{number % 97}", str(number).encode(), timeout=WAIT_S))

    def go_on(self, events: int) -> None:
        """Wait until so many more were put."""
        at = len(self.receipts) + events
        eventually(lambda: len(self.receipts) >= at, WAIT_S)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(WAIT_S)
