"""What a publisher called and what became of it, one JSON object a line, written before anything else happens.

{"call": "p0.2.17", "topic": "model", "kind": "put", "entries": {key: value}}    before the call is made
{"call": "p0.2.17", "positions": "..."}                                          it was accepted: at most once
{"call": "p0.2.17", "outcome": "durable"}                                        or the code of an error: once

Under persistence "none" acceptance is the outcome: {"call": "p0.2.17", "outcome": "accepted"}.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramstream as ps

from .lines import Line, decode, encode

Outcome = Future[ps.VersionVector[str]]


class JournalWriter:
    """Appends whole lines to a file, from any thread; a killed writer leaves what it wrote."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def calls(self, call: str, **fields: Any) -> None:
        self._write({"call": call, **fields})

    def raised(self, call: str, error: ps.ParamstreamError) -> None:
        """The call itself raised: nothing of it was sent, or its receipt is not to be had."""
        self._write({"call": call, "outcome": error.code, "text": str(error)})

    def follow(self, call: str, receipt: ps.Receipt) -> None:
        """Write the receipt's outcomes as they come."""

        def accepted(future: Outcome) -> None:
            if future.exception() is None:
                self._write({"call": call, "positions": str(receipt.positions)})

        def ended(future: Outcome, well: str) -> None:
            error = future.exception()
            if error is None:
                self._write({"call": call, "outcome": well})
            else:
                code = error.code if isinstance(error, ps.ParamstreamError) else repr(error)
                self._write({"call": call, "outcome": code, "text": str(error)})

        receipt.accepted.add_done_callback(accepted)
        try:
            durable = receipt.durable
        except ps.NotDurable:
            receipt.accepted.add_done_callback(lambda future: ended(future, "accepted"))
        else:
            durable.add_done_callback(lambda future: ended(future, "durable"))

    def _write(self, line: Line) -> None:
        os.write(self._handle, encode(line))


@dataclass
class Called:
    """One call of a publisher."""

    call: str
    topic: str
    kind: str
    entries: Mapping[str, str | None]
    """Key → value written, None where it was deleted. A row's key is TABLE/KEY."""
    version: int | None
    round: int
    """Of kills, in which it was called."""
    accepted: str | None = None
    """The positions of its events, as text."""
    outcomes: list[str] = field(default_factory=list[str])
    """Final ones: "durable", "accepted" (under "none"), or the code of an error. One, or none where the publisher was killed before."""
    text: str = ""


class JournalReader:
    """Reads a journal while it is written."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._handle = os.open(path, os.O_RDONLY)
        self._pending = b""
        self.round = 0
        """Of kills: the present one."""
        self.calls: dict[str, Called] = {}
        self.durable = 0
        """How many calls are known to be durable."""

    def __str__(self) -> str:
        calls = list(self.calls.values())
        ended = Counter(called.outcomes[0] if called.outcomes else "open" for called in calls)
        accepted = sum(called.accepted is not None for called in calls)
        last_error = next((called.text for called in reversed(calls) if called.text), "")
        return f"{len(calls)} calls, {accepted} accepted, outcomes {dict(ended)} {last_error}"

    def read(self) -> None:
        """Take in what was written since."""
        while data := os.read(self._handle, 1 << 20):
            *whole, self._pending = (self._pending + data).split(b"\n")
            for line in whole:
                self._take(line)

    def close(self) -> None:
        os.close(self._handle)

    def _take(self, data: bytes) -> None:
        line = decode(data)
        name = line["call"]
        if "kind" in line:
            assert name not in self.calls, f"{name} was called twice"
            self.calls[name] = Called(
                name, line["topic"], line["kind"], line["entries"], line["version"], round=self.round
            )
        elif "positions" in line:
            assert self.calls[name].accepted is None, f"{name} was accepted twice"
            self.calls[name].accepted = line["positions"]
        else:
            outcome = line["outcome"]
            self.calls[name].outcomes.append(outcome)
            self.calls[name].text = line.get("text", "")
            self.durable += outcome == "durable"
