"""The client: what joins producers and consumers to a broker.

    client = ps.connect("tcp://127.0.0.1:7777")
    client.create_topic("model", exist_ok=True)
    pub = client.publisher("model", producer="trainer-0")
    pub.publish_weights(module, version=1)
    rep = client.replica("model")
    rep.wait_version(1)

A client is thread-safe and synchronous; the futures of receipts can be awaited. It holds one link to the broker for all its
publishers and requests; each replica and subscription has a link of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import msgspec

from .brokers import registry
from .consistency.gate import Ordering
from .consistency.vector import VersionVector
from .consumers.gathering import wait_replicas
from .consumers.lookups.hot import HotRows, HotTopics
from .consumers.lookups.lookups import AtLeast, Lookups
from .consumers.processors.processor import Processor
from .consumers.processors.run import ProcessorRun
from .consumers.processors.task import Surroundings
from .consumers.replica import Replica
from .consumers.restore import restore as restore_from
from .consumers.status import ReplicaStatus
from .consumers.subscriber import Subscription
from .consumers.targets import Moment
from .consumers.version_info import VersionInfo
from .errors import InvalidEvent, NotDurable, ParamstreamError, TopicExists, UnknownTopic
from .eventlog.kafka.settings import KafkaLog
from .events.arrays import ArrayKind
from .events.kinds import Table
from .events.limits import check_name, check_version
from .events.recording import HistoryFile
from .events.tables import AnyInit, AnyOptimizer, definition_of, optimizer_payload
from .events.validate import check_table
from .producers.observing import Observable
from .producers.output import Output
from .producers.publisher import Publisher
from .producers.receipt import Receipt
from .producers.router import SessionRouter
from .producers.session import Session
from .producers.watch import Watch
from .tiers.sizes import parse_size
from .tiers.store import TieredStore
from .transport.calls import (
    BrokerRecord,
    CreateTable,
    CreateTopic,
    DeleteTopic,
    DescribeBroker,
    DescribeStorage,
    ListReplicas,
    ListTables,
    ListVersions,
    TopicRecord,
    VersionRecord,
)
from .transport.directory import Directory
from .transport.link import Handler, Link
from .transport.messages import FORMAT, Hello, Report

TIMEOUT_S = 30.0
CONNECT_S = 5.0
PERSISTENCE = ("none", "write_back", "write_through")
MAX_PARTITIONS = 1024
MAX_RETAINED = 1_000_000
MIN_HOT_BYTES = 1024 * 1024
"""A row may take nearly as much."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic and its settings."""

    name: str
    id: int
    partitions: int
    persistence: str
    retain_versions: int


def connect(
    endpoint: str | Sequence[str],
    *,
    history: str | os.PathLike[str] | None = None,
    hot_rows: int | str | None = None,
    timeout: float = CONNECT_S,
) -> Client:
    """A client of the broker at `endpoint` (or at the first of several that answers). Blocks until it has answered.

    Of brokers that share a log one is enough: it tells of the others, and the client uses them all.

    `history` is a file to which the client appends what its publishers, processors and replicas do, for `paramstream check`; several
    clients, in several processes too, may use one file. What is published then leaves only once the file has it.

    `hot_rows`, bytes or a text such as "64MiB", keeps copies here of rows that `lookup` is asked for often, so much memory for each table.
    For that the client follows all state of the topics it looks rows up in, as a replica does, and drops what is written.

    Raises `ConnectFailed` that names the endpoint after `timeout` s, and before anything is done `InvalidEvent` where the file cannot
    be written.
    """
    return Client([endpoint] if isinstance(endpoint, str) else list(endpoint), timeout, history, hot_rows)


def restore(
    source: str | KafkaLog,
    topic: str,
    at: Moment = None,
    store: TieredStore | None = None,
    dense_only: bool = False,
    *,
    snapshots: str | os.PathLike[str] | None = None,
    arrays: ArrayKind | None = None,
) -> Replica:
    """The state of `topic` at a moment, as a replica that follows nothing and stays there. Only what is durable counts.

    `source` is "file:DIR", the folder of a local log (its broker may be running), "kafka://HOST:PORT" or the settings of a log in
    Kafka, the endpoint of a broker, or "snapshot:DIR", a folder of snapshots, of which one by itself is restored. `at` is a
    version (the weights sealed last under that number, rows and KV at the closed cut of its commit), a vector or a `datetime`
    with a zone (the greatest closed state at or before it), or None for the head. `dense_only` leaves rows and KV out.
    `snapshots` is a folder of snapshots to begin with where the log no longer has all of rows and KV, or of a version; without it
    a broker's keeper is asked. `store` is left open when the replica is closed.

    Blocks until everything is applied. Raises `UnknownTopic`, `VersionNotHeld` where there is no such version, `LogTruncated`
    where nothing reaches back, `NotDurable` for a topic with persistence "none", `CorruptLog`, `StorageFull`, `ConnectFailed`.
    """
    return restore_from(source, topic, at, store, dense_only, registry=registry, snapshots=snapshots, arrays=arrays)


class Client:
    """One user's view of a broker; made by `connect`."""

    def __init__(
        self,
        endpoints: Sequence[str],
        timeout: float = CONNECT_S,
        history: str | os.PathLike[str] | None = None,
        hot_rows: int | str | None = None,
    ) -> None:
        if not endpoints:
            raise InvalidEvent("no endpoint was given", remedy="Pass tcp://HOST:PORT or ipc://PATH")
        self._hot_bytes = None if hot_rows is None else parse_size(hot_rows)
        if self._hot_bytes is not None and self._hot_bytes < MIN_HOT_BYTES:
            raise InvalidEvent(f"hot_rows={hot_rows!r} is too little to hold rows", remedy="Give 1MiB or more, or None")
        self._history = None if history is None else HistoryFile(history)
        try:
            self._connect(endpoints, timeout)
        except BaseException:
            self._close_history()
            raise

    def _connect(self, endpoints: Sequence[str], timeout: float) -> None:
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._handles: list[Replica | Subscription | ProcessorRun] = []
        self._router = SessionRouter()
        self._link = Link(endpoints, self._router, lambda: Hello(FORMAT), name="client")
        self._directory = Directory(self._link.request)
        hot = None if self._hot_bytes is None else HotTopics(self._hot_bytes, self._directory, self._make_link)
        self._lookups = Lookups(self._link, self._directory, hot)
        self._router.directory = self._directory
        self._router.watch = self._watch = Watch(self._link, self._directory)
        self._window_bytes = self._link.start(timeout).window_bytes

    # --- topics and tables --------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        persistence: str = "write_back",
        retain_versions: int = 8,
        exist_ok: bool = False,
        timeout: float = TIMEOUT_S,
    ) -> TopicInfo:
        """A new topic of `partitions` state partitions and one for weights; returns once that is durable.

        Raises `TopicExists` (with `exist_ok`: only where it exists with other settings), `InvalidEvent` for a bad setting.
        """
        check_name("topic", name)
        if name.startswith("__"):
            raise InvalidEvent(
                f"the topic name {name!r} is reserved", topic=name, remedy="Do not begin it with two underscores"
            )
        _check_count("partitions", partitions, MAX_PARTITIONS, name)
        if persistence not in PERSISTENCE:
            raise InvalidEvent(f"the persistence {persistence!r} is none of {', '.join(PERSISTENCE)}", topic=name)
        _check_count("retain_versions", retain_versions, MAX_RETAINED, name)
        call = CreateTopic(name, partitions, persistence, retain_versions, exist_ok)
        record: TopicRecord = self._link.request(call, TopicRecord, timeout)
        self._directory.learn(record)
        return _topic_info(record)

    def create_table(
        self,
        topic: str,
        table: str,
        dim: int,
        dtype: str = "float32",
        optimizer: AnyOptimizer | None = None,
        init: AnyInit = 0.0,
        expire_after: float | None = None,
        exist_ok: bool = False,
        timeout: float = TIMEOUT_S,
    ) -> None:
        """A table of rows, int64 key → vector of `dim` values; returns when every state partition has it durably.

        `dtype`: "float32", "float64", "float16" or "bfloat16". `optimizer`: how gradients are applied (`ps.SGD`, `ps.Adagrad`,
        `ps.RowwiseAdagrad`, `ps.Adam`); without one they are refused. `init`: what a row is before anybody wrote it, a number or
        `ps.Normal`, `ps.Uniform`. `expire_after`: rows that were not written for so many seconds are deleted by the broker's keeper; without
        one nothing expires.

        Raises `InvalidEvent` for a bad setting; `TopicExists` where the table exists (with `exist_ok`: with other settings); the
        error of the state partitions that lack it, by number: called again it is filled in there.
        """
        definition = definition_of(table, dim, dtype, optimizer, init, expire_after)
        check_table(definition)

        def create() -> None:
            record = self._directory.topic(topic)
            try:
                self._link.request(CreateTable(record.id, definition, exist_ok), bool, timeout)
            except TopicExists:
                # Somebody's call may have failed half way, of which the owner of `__meta` knows nothing where another broker has
                # the partitions: the same one again fills in what is missing.
                again = CreateTable(record.id, definition, exist_ok=True)
                if exist_ok or not self._link.request(again, bool, timeout):
                    raise
            self._directory.learn_table(record.id, definition)

        self._directory.of_topics([topic], create)

    def alter_table(
        self, topic: str, table: str, optimizer: AnyOptimizer | None, *, timeout: float = TIMEOUT_S
    ) -> None:
        """Apply the table's gradients by `optimizer` from here on; returns when every state partition has it durably.

        It is an event at its place in each state partition: gradients before it are applied by the optimizer before, on every
        replica alike. Other numbers of the same kind go on with the rows' state; another kind starts the state anew.

        Raises `UnknownTopic`, `InvalidEvent`, or the error of the state partitions that lack it, by number: called again it is
        filled in there.
        """
        changed = None if optimizer is None else optimizer_payload(optimizer)

        def alter() -> None:
            record = self._directory.topic(topic)
            known: list[Table] = self._link.request(ListTables(record.id), list[Table], timeout)
            found = next((each for each in known if each.table == table), None)
            if found is None:
                raise UnknownTopic(
                    "the topic has no such table", topic=topic, item=table, remedy="Make it with client.create_table"
                )
            definition = msgspec.structs.replace(found, optimizer=changed)
            self._link.request(CreateTable(record.id, definition, exist_ok=True, alter=True), bool, timeout)
            self._directory.learn_table(record.id, definition)

        self._directory.of_topics([topic], alter)

    def topics(self, timeout: float = TIMEOUT_S) -> list[TopicInfo]:
        """All topics, by name."""
        return [
            _topic_info(record) for record in sorted(self._directory.refresh(timeout), key=lambda record: record.name)
        ]

    def storage(self, topic: str, timeout: float = TIMEOUT_S) -> dict[str, str]:
        """What the tools of the log say of the topic: over Kafka the name of its topic there and what is set for that.

        Empty over a log in a folder or in memory. Raises `UnknownTopic`.
        """

        def ask() -> dict[str, str]:
            call = DescribeStorage(self._directory.topic(topic).id)
            answer: dict[str, str] = self._link.request(call, dict[str, str], timeout)
            return answer

        return self._directory.of_topics([topic], ask)

    def delete_topic(self, name: str, timeout: float = TIMEOUT_S) -> None:
        """Forget the topic and free its log. Raises `UnknownTopic`."""
        self._link.request(DeleteTopic(name), type(None), timeout)
        self._directory.forget_names()

    def versions(self, topic: str, timeout: float = TIMEOUT_S) -> list[VersionInfo]:
        """The sealed versions that the topic's owner knows, oldest commit first."""

        def ask() -> list[VersionRecord]:
            call = ListVersions(self._directory.topic(topic).id)
            answer: list[VersionRecord] = self._link.request(call, list[VersionRecord], timeout)
            return answer

        found = self._directory.of_topics([topic], ask)
        return [VersionInfo.of_record(version) for version in found]

    def replicas(self, topic: str, timeout: float = TIMEOUT_S) -> list[ReplicaStatus]:
        """What the replicas of the topic last reported of themselves, with the age of each report."""

        def ask() -> list[Report]:
            call = ListReplicas(self._directory.topic(topic).id)
            answer: list[Report] = self._link.request(call, list[Report], timeout)
            return answer

        reports = self._directory.of_topics([topic], ask)
        return [ReplicaStatus.of_report(report, self._directory) for report in reports]

    def describe_broker(self, timeout: float = TIMEOUT_S) -> BrokerRecord:
        """A moment of the broker, or of all that share its log, as `paramstream top` shows it: partitions, producers, followers and
        replicas.
        """
        found: BrokerRecord = self._link.request(DescribeBroker(), BrokerRecord, timeout)
        return found

    def wait_replicas(self, topic: str, version: int, count: int, timeout: float = TIMEOUT_S) -> None:
        """Blocks until `count` replicas serve that sealing of `version`, or a later commit, as they report within 0.1 s.

        A replica that is not heard of does not count, nor one whose bound module could not take the version. Raises such a
        replica's own error, under its name, where the others are too few; else `ParamstreamTimeout` that names who is behind.
        """
        check_version(version)
        deadline = time.monotonic() + timeout
        self._directory.of_topics(
            [topic], lambda: wait_replicas(self._directory, topic, version, count, deadline - time.monotonic())
        )

    # --- looking up ---------------------------------------------------------------------------------------------------------

    def lookup(
        self,
        topic: str,
        table: str,
        keys: Any,
        at_least: AtLeast = None,
        return_found: bool = False,
        *,
        return_vector: bool = False,
        arrays: ArrayKind | None = None,
        timeout: float = TIMEOUT_S,
    ) -> Any:
        """The rows of `keys` (int64, one dimension) as (len(keys), dim), from replicas that serve (`rep.serve`, `paramstream replica
        --serve`): each is asked for the partitions that it holds, all at once, in the calling thread. What does not answer is left for
        another one.

        A row that is not there has its first value; `return_found` adds a bool array (len(keys),) that says of each whether it is there.
        Each row is whole, and of one moment; rows of one call may be of different ones. `at_least`, a receipt or a vector: the answer
        has seen all of it that concerns the partitions asked, as `rep.wait` has. `return_vector` adds the vector that the answer has
        seen: given as `at_least` to a later call, nothing is older there.

        Raises `ParamstreamTimeout` after `timeout` s, naming a partition and whom it was asked of, or that nobody serves it;
        `UnknownTopic` where there is no such topic or table, `InvalidEvent` for keys of another dtype, and `EventLost` where `at_least`
        was lost.
        """
        values, found, seen = self._lookups.rows(topic, table, keys, at_least, arrays, timeout)
        result = (values, *((found,) if return_found else ()), *((seen,) if return_vector else ()))
        return result if len(result) > 1 else values

    def get(
        self, topic: str, key: bytes | str, at_least: AtLeast = None, *, timeout: float = TIMEOUT_S
    ) -> bytes | None:
        """The value under `key`, from a replica that serves its partition; None where there is none. As `rep.get` and `lookup`."""
        values, _ = self._lookups.entries(topic, [key], at_least, timeout)
        return values[0]

    def get_many(
        self, topic: str, keys: Iterable[bytes | str], at_least: AtLeast = None, *, timeout: float = TIMEOUT_S
    ) -> list[bytes | None]:
        """The values in the order asked; each is of a moment of its own."""
        values, _ = self._lookups.entries(topic, keys, at_least, timeout)
        return values

    @property
    def hot_rows(self) -> HotRows:
        """What is kept here of rows that were looked up, and what that was good for. All 0 without `hot_rows=`."""
        return self._lookups.hot_rows()

    # --- publishing and following -----------------------------------------------------------------------------------------

    def publisher(
        self,
        topic: str,
        producer: str,
        observes: Observable | None = None,
        lost: str = "raise",
        *,
        timeout: float = TIMEOUT_S,
    ) -> Publisher:
        """A publisher to `topic` under the producer name, whose one session all publishers of this client share.

        A second client that opens the name fences this one. With `observes=rep`, each publish depends on what `rep` serves.

        `lost="raise"`: what was accepted and then lost raises `EventLost`. `lost="again"`: it is published again by itself, as new
        events, before anything that was called later, and the same receipt names those; one that was written as text stays
        lost. For that the bytes of every event stay in memory until it is durable, and take of the byte window until then; of
        weights also the part of a tensor of which some is not durable. All publishers of a name say the same.

        Raises `UnknownTopic`, `InvalidEvent` for a bad name, or where the name is open with another `lost`.
        """
        check_name("producer", producer)
        if lost not in ("raise", "again"):
            raise InvalidEvent(f"lost={lost!r} is neither 'raise' nor 'again'")
        again = lost == "again"
        return self._directory.of_topics([topic], lambda: self._publisher(topic, producer, observes, again, timeout))

    def _publisher(
        self, topic: str, producer: str, observes: Observable | None, again: bool, timeout: float
    ) -> Publisher:
        record = self._directory.topic(topic)
        with self._lock:
            session = self._sessions.get(producer)
            if session is None or session.closed or session.fenced is not None:
                session = self._new_session(producer, again=again)
                self._sessions[producer] = session
                self._router.add(session)
                session.open(timeout)
            elif session.again is not again:
                raise InvalidEvent(
                    f"producer {producer!r} is open with another lost=",
                    remedy="Say the same for all publishers of a name",
                )
            elif not session.has_joined(record):
                session.join(timeout)
            session.check_joined(record)
            return Publisher(session, record, self._directory, observes=observes)

    def attach(self, receipt: Receipt) -> Receipt:
        """Let a receipt that came as text (`Receipt.parse`) follow its events: from here on `receipt.durable` is done once the
        log has them for good, and raises `EventLost` where it never will. Returns the same receipt.

        A receipt of this process follows its events anyway. Raises `UnknownTopic` where a topic of it is gone.
        """
        for topic, _ in receipt.positions:
            self._directory.topic(topic)
        receipt.attach_to(self._watch)
        return receipt

    def replica(
        self,
        topics: str | Sequence[str],
        name: str | None = None,
        ordering: str = "causal",
        store: TieredStore | None = None,
        start: str | VersionVector[str] = "latest",
        catch_up: str = "latest",
        visibility: str = "accepted",
        *,
        keep_versions: int = 2,
        partitions: Iterable[int] | None = None,
        arrays: ArrayKind | None = None,
        snapshot_dir: str | os.PathLike[str] | None = None,
        timeout: float = TIMEOUT_S,
    ) -> Replica:
        """A replica that follows one topic or several; returns when the start state, as of this call, is served.

        `start` is "latest" (complete state at the head), "earliest" (every retained event), "resume" (what a named replica last kept
        in `snapshot_dir`), "snapshot:DIR" or a vector. `partitions` limits the state partitions followed; weights are followed
        whole. `visibility="durable"` shows nothing that could still be lost; `NotDurable` is raised for a topic with persistence
        "none". See `Replica`.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        chosen = None if partitions is None else list(partitions)
        replica = self._directory.of_topics(
            names,
            lambda: Replica(
                names,
                directory=self._directory,
                make_link=self._make_link,
                name=name,
                ordering=_ordering(ordering),
                store=store,
                start=start,
                catch_up=catch_up,
                visibility=visibility,
                keep_versions=keep_versions,
                partitions=chosen,
                arrays=arrays,
                snapshot_dir=snapshot_dir,
                history=self._history,
                timeout=timeout,
            ),
        )
        self._keep(replica)
        return replica

    def subscribe(
        self,
        topic: str,
        ordering: str = "causal",
        start: str | VersionVector[str] = "head",
        visibility: str = "accepted",
        *,
        timeout: float = TIMEOUT_S,
    ) -> Subscription:
        """The raw events of a topic, in order, from `start` ("head", "earliest" or a vector) on: fixed when this returns.

        Where events that were yielded turn out to be lost, a "lost" event names the end of their epoch. `visibility="durable"`
        yields only what can no longer be lost; `NotDurable` is raised for a topic with persistence "none".
        """
        subscription = self._directory.of_topics(
            [topic],
            lambda: Subscription(
                topic,
                directory=self._directory,
                make_link=self._make_link,
                ordering=_ordering(ordering),
                start=start,
                visibility=visibility,
                timeout=timeout,
            ),
        )
        self._keep(subscription)
        return subscription

    def run(
        self, step: Processor, name: str, state: str | os.PathLike[str], *, timeout: float = TIMEOUT_S
    ) -> ProcessorRun:
        """Run a processor (`ps.processor`): one task for each source partition, in threads, until the handle is closed.

        `name` has one live owner: a second run of it fences this one, whose tasks stop with `Fenced`. A task is the producer
        `NAME/PARTITION`. `state` is a folder, of this processor alone, that keeps each task's state and input position. A task
        without a snapshot begins with the source's first event. Returns when every task follows its partition.

        Raises `UnknownTopic`, `NotDurable` where source or sink have persistence "none", `InvalidEvent` where the folder is
        another processor's, `LogTruncated` where the source no longer has what comes next, `CorruptLog` where all snapshots of
        a task are damaged, `OSError` of the folder, and `ParamstreamTimeout`.
        """
        if not isinstance(cast(object, step), Processor):
            raise InvalidEvent(
                "what is run is no processor", remedy="Decorate it with @ps.processor(source=..., sink=...)"
            )
        run = self._directory.of_topics([step.source, step.sink], lambda: self._run(step, name, Path(state), timeout))
        self._keep(run)
        return run

    def _run(self, step: Processor, name: str, state: Path, timeout: float) -> ProcessorRun:
        source, sink = self._directory.topic(step.source), self._directory.topic(step.sink)
        check_name("processor", name)
        check_name("processor", f"processor {name}/{source.partitions}")
        for record in (source, sink):
            if record.persistence == "none":
                raise NotDurable(
                    "nothing of it lasts, and a processor could do no input exactly once", topic=record.name,
                    remedy='Give source and sink the persistence "write_back" or "write_through"',
                )  # fmt: skip

        if step.partitions not in (None, source.partitions):
            raise InvalidEvent(
                f"the processor needs a source of {step.partitions} state partitions, this one has {source.partitions}",
                topic=source.name,
                remedy=f"Create a topic for it with partitions={step.partitions}",
            )

        def make_out(producer: str, timeout: float) -> Output:
            session = self._new_session(producer, halts=True)
            with self._lock:
                self._router.add(session)
            session.open(timeout)
            return Output(session, sink, self._directory)

        around = Surroundings(step, name, source, state, self._directory, self._make_link, make_out)
        return ProcessorRun(around, range(source.partitions + step.weights), timeout)

    # --- the end ------------------------------------------------------------------------------------------------------------

    def close(self, timeout: float = TIMEOUT_S) -> None:
        """Close replicas, subscriptions and sessions, then the link. What publishers have not had answered is named in the
        error of the first session that has any, and so is what a task of a processor has ended with; everything is closed all
        the same.
        """
        deadline = time.monotonic() + timeout
        first: Exception | None = None
        self._lookups.close(_left_to_end(deadline))
        for handle in self._handles:
            try:
                handle.close(_left_to_end(deadline))
            except (ParamstreamError, OSError) as error:
                first = first or error
        for session in list(self._sessions.values()):
            try:
                session.close(max(0.0, deadline - time.monotonic()))
            except ParamstreamError as error:
                first = first or error
        self._link.close(_left_to_end(deadline))
        for session in self._router.sessions:
            session.end()
        self._watch.close()
        self._close_history()
        if first is not None:
            raise first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _keep(self, handle: Replica | Subscription | ProcessorRun) -> None:
        """Closed with the client, if it is not closed by then."""
        with self._lock:
            self._handles = [*(each for each in self._handles if not each.closed), handle]

    def _new_session(self, producer: str, *, halts: bool = False, again: bool = False) -> Session:
        return Session(
            producer,
            self._link,
            self._directory,
            self._window_bytes,
            halts=halts,
            again=again,
            history=self._history,
        )

    def _close_history(self) -> None:
        if self._history is not None:
            self._history.close()

    def _make_link(self, handler: Handler, hello: Callable[[], Hello], name: str) -> Link:
        return Link(self._link.endpoints, handler, hello, name)


def _left_to_end(deadline: float) -> float:
    """Seconds for a thread to end, which it does at once once it is told: some, even where sessions have taken them all."""
    return max(1.0, deadline - time.monotonic())


def _check_count(what: str, given: object, most: int, topic: str) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= most:
        raise InvalidEvent(f"{what}={given!r}; it must be an int from 1 to {most}", topic=topic)


def _ordering(ordering: str) -> Ordering:
    try:
        return Ordering(ordering)
    except ValueError:
        raise InvalidEvent(f"the ordering {ordering!r} is neither 'pram' nor 'causal'") from None


def _topic_info(record: TopicRecord) -> TopicInfo:
    return TopicInfo(record.name, record.id, record.partitions, record.persistence, record.retain_versions)
