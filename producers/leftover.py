"""What a session has no answer for, in words."""

from __future__ import annotations

from collections.abc import Sequence

from .directory import Directory
from .session_core import SessionCore


def describe_leftover(core: SessionCore, directory: Directory) -> str:
    """Sequences on the wire, sequences never sent, calls that still wait their turn, and what is not durable yet."""
    parts: list[str] = []
    for (topic, number), partition in core.partitions.items():
        name = f"{directory.name_of(topic) or topic}/{number}"
        sent = [event.sequence for event in partition.flight.values() if event.sends]
        unsent = [event.sequence for event in partition.flight.values() if not event.sends]
        if sent:
            parts.append(f"{name}: outcome unknown of sequences {_ranges(sent)}")
        if unsent:
            parts.append(f"{name}: never sent are sequences {_ranges(unsent)}")
        if partition.awaiting:
            parts.append(f"{name}: {len(partition.awaiting)} accepted and not durable")
    if core.waiting_calls:
        parts.append(f"{core.waiting_calls} calls still wait their turn")
    return "; ".join(parts)


def _ranges(numbers: Sequence[int]) -> str:
    """`1–5, 8` for 1, 2, 3, 4, 5, 8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)
