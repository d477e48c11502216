"""A broker: in this process (tests, notebooks, one machine), or its own by `paramstream broker`.

with ps.Broker(bind="tcp://127.0.0.1:0", log="file:/var/lib/paramstream") as broker:
    print(broker.endpoint)
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import msgspec

from ..consistency.vector import PartitionId
from ..errors import InvalidEvent, ParamstreamTimeout
from ..eventlog.kafka.settings import KafkaLog
from ..eventlog.log import EventLog, Member, Membership, SharedLog
from ..eventlog.open import open_log
from ..transport.messages import Welcome
from ..transport.slots import SLOTS
from ..transport.sockets import release, router
from ..transport.waiting import bounded
from .fetching import FetchServer
from .following import MetaReader
from .keeper import Keeper
from .keeper_files import KeeperFiles
from .loop import HEARTBEAT_S, Loop
from .membership import SlotMember
from .partitions import Partitions
from .posting import Posting
from .worker import Worker

_log = logging.getLogger(__name__)

WINDOW_BYTES = 32 * 1024 * 1024
"""What a session may have on the wire unanswered: 40 chunks, enough to keep a loopback busy for 10 ms."""

OPENING_THREADS = 8
"""Over a log that brokers share each opening waits several times for the log, and not for a disk of this machine."""

_numbers = itertools.count()


class BrokerStatus(msgspec.Struct, frozen=True):
    """What a broker knows about itself."""

    endpoint: str
    partitions: int
    log_bytes: int
    log_limit: int
    garbled_frames: int
    """Frames that could not be decoded, of all clients."""
    stopped: dict[PartitionId, str]
    """Partitions whose log takes nothing more, with the reason."""
    troubled: dict[PartitionId, str]
    """Partitions of which nothing becomes durable just now, with the reason; it is tried again."""
    cut: dict[PartitionId, str]
    """What a torn tail lost when a partition was opened."""
    group: str = ""
    """Why the broker is given no partitions of a log that brokers share; empty where nothing is in the way."""
    keeper: str = ""
    """What keeps the broker's keeper from its work; empty where nothing does, or there is none."""


class Broker:
    """Sequences, stores and fans out the events of its partitions, from construction until `close`.

    `bind` is tcp://HOST:PORT (port 0 for any free one) or ipc://PATH; beyond loopback it needs `insecure=True`. `log` is
    "memory:" or "file:DIR", or an open log, which the broker closes; `log_limit` is the hard limit in bytes (or "4GiB") of
    all that a log named so holds: 4 GiB in memory, 64 GiB on disk unless given. With `keeper`, a folder, a process beside the broker
    makes snapshots of every topic there, so that rows and KV may leave the log behind them.

    Brokers over one Kafka share its partitions. `name` is this one's own among them, the same at each start (its address, unless
    given); `advertise` is the address that clients are told, where that is not the one bound.

    Raises `BindFailed` where the address or the log's folder is taken, `AccessDenied` for a bind beyond loopback,
    `CorruptLog` where the log is damaged in a place that is not its torn tail.
    """

    def __init__(
        self,
        bind: str = "tcp://127.0.0.1:0",
        log: str | KafkaLog | EventLog = "memory:",
        insecure: bool = False,
        keeper: str | os.PathLike[str] | None = None,
        *,
        log_limit: int | str | None = None,
        name: str | None = None,
        advertise: str | None = None,
    ) -> None:
        self._closing = threading.Event()
        self._closed = False
        self._membership: Membership | None = None
        self._pid = os.getpid()
        in_process = f"inproc://paramstream-broker-{os.getpid()}-{next(_numbers)}"
        with ExitStack() as undo:
            self._socket, self.endpoint = router(bind, insecure=insecure, in_process=in_process)
            undo.callback(release, self._socket, self.endpoint)
            self._log = open_log(log, log_limit) if isinstance(log, str | KafkaLog) else log
            undo.callback(self._log.close)
            owner = f"{os.uname().nodename}:{os.getpid()}"
            self._partitions = Partitions(self._log, owner, time.time, time.monotonic_ns)
            self._posting = Posting(in_process)
            undo.callback(self._posting.close)
            self._worker = Worker(self._posting.post, OPENING_THREADS if self._log.shared else 1)
            shared = self._partitions.shared_log
            self._reader = MetaReader(shared, self._posting.post) if shared is not None else None
            self._fetches = FetchServer(_fetch_bind(self.endpoint), insecure=insecure, partitions=self._partitions)
            undo.callback(self._fetches.close, 0.0)
            advertised = _advertised(self.endpoint, advertise, self._log.shared)
            welcome = Welcome(uuid4().hex, _announced(self._fetches.address), WINDOW_BYTES, HEARTBEAT_S)
            self._keeper = None if keeper is None else self._make_keeper(Path(keeper), welcome.broker)
            self._loop = Loop(
                self._socket, self._partitions, self._posting, self._worker, self._reader, welcome, self._closing
            )
            if not self._log.shared:
                self._loop.owning.start()
            undo.pop_all()
        self._thread = threading.Thread(target=self._loop.run, name="paramstream-broker", daemon=True)
        self._worker.start()
        self._loop.syncer.start()
        self._fetches.start()
        if self._reader is not None:
            self._reader.open()
        self._thread.start()
        if shared is not None:
            self._membership = self._share(shared, Member(name or advertised, welcome.broker, advertised))
        if self._keeper is not None:
            self._keeper.start()
        _log.info("broker %s listens on %s", welcome.broker, self.endpoint)

    def status(self) -> BrokerStatus:
        owned = dict(self._partitions.owned)
        return BrokerStatus(
            endpoint=self.endpoint,
            partitions=len(owned),
            log_bytes=self._partitions.nbytes,
            log_limit=self._partitions.limit,
            garbled_frames=self._loop.garbled_frames + self._fetches.garbled_frames,
            stopped={partition: str(o.error) for partition, o in owned.items() if o.error is not None},
            troubled={p: o.durable.trouble for p, o in owned.items() if o.error is None and o.durable.trouble},
            cut={partition: o.cut for partition, o in owned.items() if o.cut},
            group="" if self._membership is None else self._membership.trouble,
            keeper="" if self._keeper is None else self._keeper.error,
        )

    def close(self, timeout: float = 30.0) -> None:
        """Stop cleanly: nothing more is accepted, what was accepted is made durable, the log is given back.

        Raises `ParamstreamTimeout` where that took longer than `timeout` s. A second call changes nothing.
        """
        if self._closed or os.getpid() != self._pid:
            # A fork has neither threads nor sockets of the broker, and its log belongs to the process that opened it.
            return
        deadline = time.monotonic() + bounded(timeout)

        def left() -> float:
            return max(0.0, deadline - time.monotonic())

        keeper_ended = self._keeper is None or self._keeper.close(left())
        self._closing.set()
        self._thread.join(left())
        ended = (
            keeper_ended
            and not self._thread.is_alive()
            and self._loop.syncer.close(left())
            and self._leave()
            and self._fetches.close(left())
            and self._worker.close(left())
            and (self._reader is None or self._reader.close(left()))
        )
        if not ended:
            raise ParamstreamTimeout(
                f"the broker at {self.endpoint} did not stop within {timeout:g} s",
                remedy="Look at its log, and close again",
            )
        self._closed = True
        self._posting.close()
        release(self._socket, self.endpoint)
        self._partitions.close()
        _log.info("the broker on %s is closed", self.endpoint)

    def _share(self, log: SharedLog, member: Member) -> Membership:
        """Be given slots from now on."""
        try:
            return log.join(member, SLOTS, SlotMember(member, self._loop.owning, self._posting.post))
        except BaseException:
            self.close()
            raise

    def _leave(self) -> bool:
        """All is durable: the others may have this broker's slots at once."""
        if self._membership is not None:
            self._membership.close()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_keeper(self, folder: Path, broker: str) -> Keeper:
        partitions = self._partitions
        changelogs = b"" if partitions.shared_log is None else partitions.shared_log.changelogs()
        keeper = Keeper(folder, self.endpoint, broker, changelogs)
        partitions.keeper = keeper.identity
        self._fetches.keeper_files = KeeperFiles(
            folder, lambda topic: partitions.meta.snapshots(topic, keeper.identity)
        )
        return keeper


def _advertised(endpoint: str, advertise: str | None, shared: bool) -> str:
    """The address that other brokers tell clients. Raises `InvalidEvent` where that cannot be the one that is bound."""
    if advertise is not None:
        return advertise
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    if shared and host in ("0.0.0.0", "[::]", "*"):
        raise InvalidEvent(
            f"other brokers cannot tell clients that this one is at {endpoint}",
            item=endpoint,
            remedy='Give advertise="tcp://HOST:PORT" as clients reach it',
        )
    return endpoint


def _fetch_bind(endpoint: str) -> str:
    if endpoint.startswith("ipc://"):
        return f"{endpoint}.fetch"
    return f"{endpoint.rpartition(':')[0]}:0"


def _announced(address: str) -> str:
    """The host is left to the client, which knows the broker by a name that works for it."""
    return address if address.startswith("ipc://") else f"tcp://*:{address.rpartition(':')[2]}"
