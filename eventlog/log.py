"""What an event log is: a list of records for each partition, which only grows at the end and is cut only at the front.

The records are event frames as `events.codec` writes them, stamped by the partition's owner. A log does not know who
sequences; it keeps the one rule that makes it fence itself: a *claim* counts if its epoch is above all claims before it, a
record counts if the latest claim is its writer's own (epoch and nonce) and its position is the next one (`counting.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..consistency.vector import PartitionId
from ..events.codec import Buffer, EventFrame


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a log still holds of a partition when its owner opens it."""

    base: EventFrame | None
    """The newest base that counts, or None where there is none (a new partition)."""
    records: Iterator[EventFrame]
    """The records that count behind the base, in order: epoch records, notes and events."""
    last_claim: int
    """The greatest epoch ever claimed; a new claim goes above it."""
    cut: str
    """What a torn tail lost, in words that name file, offset and bytes; empty where nothing was."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames in order of position, each a whole event frame: events, notes and epoch records that count."""

    frames: list[memoryview]
    end: int
    """The position of the last frame, or what `read` was asked to read after."""


class PartitionLog(Protocol):
    """One partition's records. One thread appends, one syncs, any may read; they may be three different threads."""

    @property
    def partition(self) -> PartitionId: ...

    @property
    def start(self) -> int:
        """The position before the first one that is held."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all records held."""
        ...

    @property
    def trouble(self) -> str:
        """Why what was appended does not become durable just now, and is tried again; empty where nothing keeps it from it."""
        ...

    @property
    def wants_base(self) -> bool:
        """The open segment is full: the next append should be a base, which opens a new segment."""
        ...

    def recover(self) -> Recovered:
        """Read what is there, cut a torn tail, sync what is kept. Called once, before the first append."""
        ...

    def claim(self, frame: Buffer) -> Iterator[EventFrame]:
        """Append a claim, make it last, and give the records that count between what `recover` has read and it, in order.

        Those are none where one broker at a time has the log. Where brokers share it this reads up to the claim, and raises
        `Fenced` where the claim does not count: another one, as high, stands before it.
        """
        ...

    def append(self, frame: Buffer) -> None:
        """Write one stamped frame; it is in the operating system's hands when this returns (not yet synced).

        The frame itself is kept, without a copy, until it is synced (a memory log: until it is cut), and must not change.
        A base that counts opens a new segment, and that syncs the one before it.

        A frame that is not whole is refused with `CorruptLog`. A failed write is retried in a new segment; raises `StorageFull` (ENOSPC) or `CorruptLog` where that fails too:
        then the broker stops the partition.
        """
        ...

    def sync(self) -> int:
        """Make all appended before this call safe against a power failure; returns the last position that is durable.

        It may return before all of it is, with how far it has come: then it is asked again. Where a sync fails, what no earlier
        one covers goes to a new segment and is synced there; raises as `append` does. Where brokers share the log, raises
        `Fenced` once another's claim stands: what was not durable by then never will be.
        """
        ...

    def read(self, after: int, max_bytes: int) -> Batch:
        """Events after position `after`, up to `max_bytes` but at least one where there is one. Reads appended ones too.

        Blocks for the disk. Damage behind the first event of a batch ends the batch; the next read meets it.

        Raises `LogTruncated` where `after` lies before `start`, `CorruptLog` naming the place of a damaged record.
        """
        ...

    def look(self, since: float) -> bool:
        """See whether another owner's claim stood at `since`, a `time.monotonic()`, though nothing is to be written. Does not wait: False
        while the log is read; asked again, True once all that stood then was. Where brokers share the log, raises `Fenced` as `sync`
        does; elsewhere there is nothing to see.
        """
        ...

    def cut(self, before: int) -> int:
        """Free whole segments of which nothing at or above `before` is needed; only directly before a base that was read
        back as counting. Returns the new `start`.
        """
        ...


class EventLog(Protocol):
    """All partitions of a broker. Opening one takes whatever makes its owner exclusive, and `close` gives it back."""

    @property
    def shared(self) -> bool:
        """Several brokers may have it open at once: partitions have owners, and claims fence them."""
        ...

    @property
    def durable_on_append(self) -> bool:
        """Nothing is gained by `sync`: a memory log holds what it holds."""
        ...

    @property
    def boot(self) -> str:
        """The present boot of the machine the log lies on; empty where that means nothing."""
        ...

    @property
    def failed_writes(self) -> int:
        """How many writes and syncs have failed since the folder was made."""
        ...

    @property
    def segment_nbytes(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def limit(self) -> int:
        """The hard limit of `nbytes` (`log_limit`)."""
        ...

    def partitions(self) -> list[PartitionId]:
        """Those that it holds records of."""
        ...

    def create_topic(self, topic: int, name: str, partitions: int) -> None:
        """Make room for that many partitions, the weight partition included; nothing where there is room already. May block.

        `name` is for people who look at the log with other tools; the topic's id decides.
        """
        ...

    def describe_topic(self, topic: int) -> Mapping[str, str]:
        """What the log's own tools would say of it: names and values, for people. Empty where a log has no such tools. May block."""
        ...

    def open(self, partition: PartitionId) -> PartitionLog: ...

    def drop_topic(self, topic: int) -> None:
        """Forget the topic's partitions and free all they hold; nothing where there are none."""
        ...

    def close(self) -> None:
        """Sync and give back everything. A second call changes nothing."""
        ...


class Tail(Protocol):
    """Reads one partition without owning it, and goes on reading what comes. For one thread."""

    def recover(self) -> Recovered:
        """The newest base, and what counts behind it. Blocks."""
        ...

    def read(self) -> Iterator[EventFrame]:
        """Events, notes and epoch records that count, from where the last call ended to the log's end as of this call. Blocks."""
        ...


class Member(NamedTuple):
    """One of the brokers that share a log."""

    name: str
    """The same at each start: a broker that comes back soon gets its slots back."""
    broker: str
    """Its id, another one at each start."""
    endpoint: str
    """Where clients reach it."""


class Share(NamedTuple):
    """What one broker has of the slots."""

    broker: str
    endpoint: str
    slots: tuple[int, ...]


class SlotListener(Protocol):
    """What a broker hears of its slots. Calls come one at a time, in a thread of the log's, and must not block."""

    def revoking(self, done: Callable[[], None]) -> None:
        """Any slot may go to another broker once `done` was called, from any thread, or the log waits no longer."""
        ...

    def assigned(self, generation: int, shares: Sequence[Share]) -> None:
        """All brokers and their slots from now on, this one among them."""
        ...


class Membership(Protocol):
    """A broker's place among those that share a log."""

    @property
    def trouble(self) -> str:
        """Why it is given no slots just now; empty where all is well. Any thread."""
        ...

    def close(self) -> None:
        """Leave: its slots go to the others at once. Blocks; afterwards nothing more is heard. A second call changes nothing."""
        ...


class SharedLog(EventLog, Protocol):
    """A log that several brokers have open at once. Each `open` of a partition is for one tenure, and gives a new object."""

    def join(self, member: Member, slots: int, listener: SlotListener) -> Membership:
        """Be one of the brokers that share `slots` among them. Those that say nothing for a while lose theirs to the others.

        Returns before the first slots are given. Raises `ConnectFailed` where the log does not answer.
        """
        ...

    def follow(self, partition: PartitionId) -> Tail: ...

    def changelogs(self) -> bytes:
        """What opens the log's changelogs in another process (`open.open_changelogs`); secrets stand in it. Empty: it has none.

        Raises `InvalidEvent` where a setting cannot leave this process.
        """
        ...

    def release(self, partition: PartitionId) -> None:
        """This broker owns it no longer: nothing more is appended. Nothing where it is not open."""
        ...
