"""A replica: a live copy of topics in this process, whose weights switch from version to version as a whole.

    rep = client.replica("model")
    rep.wait_version(7, timeout=10)
    w = rep.weights()
    w["layer.weight"], w.version, w.digest
    rep.get("learning-rate")
    bound = rep.bind(module)            # swapped in place from now on, between forwards

The link's own thread receives and applies. Reading never waits for it: weights and entries are read without a lock.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast, overload

from ..consistency.gate import Ordering
from ..consistency.position import START
from ..consistency.vector import PartitionId, VersionVector
from ..errors import (
    EventLost,
    InvalidEvent,
    ParamstreamError,
    UnknownTopic,
    VersionNotHeld,
)
from ..eventlog.changelog import Changelogs
from ..events.arrays import Array, ArrayKind, default_arrays
from ..events.digest import partition_of
from ..events.limits import check_name, check_version
from ..events.recording import HistoryFile, Token, process_name, recorded_rows
from ..events.row_keys import Keys, row_keys
from ..events.validate import key_bytes
from ..tiers.store import TieredStore
from ..transport.calls import OpenReplica, TopicRecord
from ..transport.directory import Directory
from ..transport.messages import FORMAT, Hello
from .applying import Applier, TopicState
from .beginning import Beginning, Start
from .casting import Cast
from .changelog.writing import WriteBack
from .definitions import spec_of
from .digests import TopicHeld, digest_of
from .effects import Step
from .expiring import Delete, Expiring
from .feed import Feed
from .links import MakeLink
from .matching import Rename
from .moment import status_of
from .pinning import Pinning
from .prefetching import Prefetcher, Prefetches
from .recording import ReplicaRecorder
from .replica_sink import ReplicaSink
from .resting import Resting
from .row_reads import FoundRows, RowReads, handed_out
from .scope import Scope, is_durable_only, time_left
from .serving import Serving
from .serving_source import ReplicaSource
from .snapshots.seeding import Seed
from .snapshots.taking import SnapshotInfo, Taking
from .snapshots.writing import KEEP
from .status import ReplicaStatus, TableStatus
from .subscription_core import SubscriptionCore
from .table_files import rows_once, write_table
from .version_info import VersionInfo
from .versions import Sealed
from .views import Weights
from .waits import Accepted, Waits

if TYPE_CHECKING:
    import torch

    from ..tiers.hbm import Held
    from .bound import Bound
    from .device_rows import DeviceRows

TIMEOUT_S = 30.0
_T = TypeVar("_T")


class Replica:
    """Follows topics and serves them. Thread-safe. `client.replica` makes one.

    Promise: PRAM or causal order over the partitions followed, versions of weights only as a whole, the same bits as every
    other replica. What was accepted and then lost is taken back.
    """

    def __init__(
        self,
        topics: Sequence[str],
        *,
        directory: Directory,
        make_link: MakeLink,
        name: str | None = None,
        ordering: Ordering = Ordering.CAUSAL,
        store: TieredStore | None = None,
        start: str | VersionVector[str] = "latest",
        catch_up: str = "latest",
        visibility: str = "accepted",
        keep_versions: int = 2,
        partitions: Sequence[int] | None = None,
        arrays: ArrayKind | None = None,
        snapshot_dir: str | os.PathLike[str] | None = None,
        seeds: Sequence[Seed] = (),
        on_applied: Callable[[Step], None] | None = None,
        history: HistoryFile | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        """Blocks until the start state, as of this call, is served.

        `start` is "latest": complete state at the head, of which the log no longer has all from the snapshot of the broker's
        keeper; "earliest": every retained event; "snapshot:DIR": the latest whole snapshot in a folder, then the log; "resume": the
        same with the replica's own in `snapshot_dir`, or as "latest" where there is none yet; or a vector: complete state there,
        then on. `seeds`: state that is in hand; what they do not hold begins as `start` says.

        `catch_up="latest"`: where the weights fall behind, the versions between are passed over. Until the newest one shows, rows
        and KV may be ahead of the weights (`status().jumping`); the ordering promise holds again from there on. With "all" every
        version is applied, and a replica that the log no longer waits for (it does while under half of its limit) stops with
        `LogTruncated`, which names what is gone.

        `visibility="durable"`: nothing is shown that could still be lost, so nothing is ever taken back; what is accepted shows once
        the log has it for good. The start state is then what was durable at this call.

        `on_applied` is told of each event applied, epoch begun and undo, in order: it is the replica's delivery log. It runs in
        the link's thread under the replica's lock, so it must be quick, must not raise, and must not call the replica.

        `history`: what the replica applies and its users read is recorded there; reads then wait while an event is applied.

        Raises `UnknownTopic`, `InvalidEvent`, `ConnectFailed`, `LogTruncated` where the start is no longer in the log, `CorruptLog`
        where no snapshot is whole, `EventLost` where the log lacks what the snapshot holds, `NotDurable` for "resume" under
        persistence "none", as for `visibility="durable"`, the error that stopped a partition, or `ParamstreamTimeout` after
        `timeout` s.
        """
        _check_options(keep_versions, catch_up, arrays, store)
        self.name = name or f"replica-{uuid.uuid4().hex[:12]}"
        check_name("replica", self.name)
        deadline = time.monotonic() + timeout
        self._directory = directory
        begins = Start.of(start, name, snapshot_dir)
        self._snapshot_dir = None if snapshot_dir is None else Path(snapshot_dir)
        durable_only = is_durable_only(visibility)
        self._scope = Scope(topics, directory, begins.at, partitions, deadline, durable_only=durable_only)
        self._partitions = self._scope.partitions
        self._arrays: ArrayKind = arrays or default_arrays()
        self._own_store = store is None
        self._store = store or TieredStore()
        self._applier = Applier(self._store, keep_versions)
        self._rows = RowReads(self._store, self._applier, self._partitions)
        self._prefetcher = Prefetcher(self.name)
        self._bound: list[Bound] = []
        self._serving: Serving | None = None
        self._closed = False
        hello = self._hello(name, deadline)
        beginning = Beginning(begins, self._scope, every_version=catch_up == "all")
        self._store.claim(self.name, self._applier.in_dram)
        try:
            self._begin(beginning, seeds, make_link, deadline)
        except BaseException:
            self._give_back()
            raise
        self._core = SubscriptionCore(ordering, self._scope.starts, durable_only=durable_only)
        beginning.begin(self._core)
        self._recorder: ReplicaRecorder | None = None
        if history is not None:
            process = process_name(self.name, hello.incarnation)
            self._recorder = ReplicaRecorder(
                history, process, ordering, self._core, self._applier, directory.name_of
            )  # fmt: skip
        self._sink = ReplicaSink(
            self.name,
            self._core,
            self._applier,
            directory,
            self._scope.state_partitions,
            on_applied,
            every_version=catch_up == "all",
            recorder=self._recorder,
        )
        self._waits = Waits(self._sink, self._core, directory)
        self._taking = Taking(self.name, self._sink, self._core, self._applier, self._store, lambda: self._closed)
        self._pinning = Pinning(
            self._sink, self._core, self._applier, self._store, directory, make_link, self._snapshot_dir
        )
        self._resting = Resting(self._store, self._pinning, make_link)
        feed = Feed(self._core, self._sink, self._sink.lock)
        link = make_link(feed, lambda: hello, f"replica-{self.name}")
        self._link = feed.link = self._sink.link = self._sink.jumps.link = link
        self._start(deadline)

    # --- weights --------------------------------------------------------------------------------------------------------------

    def weights(self, version: int | None = None, topic: str | None = None) -> Weights:
        """The version served, or a kept one: whole, without a copy. Blocks for the disk only, where the version lies on SSD.

        Raises `VersionNotHeld` before the first commit, or where the version is not kept; of one on SSD what `promote` raises.
        """
        if version is not None:
            check_version(version)
        if self._recorder is None or version is not None:
            state, sealed = self._retained(version, topic)
        else:
            with self._sink.changed:
                state, sealed = self._retained(version, topic)
                self._recorder.reads_weights(state, sealed)
        try:
            return self._view(state.record.name, sealed)
        finally:
            sealed.dense.release()

    def wait_version(self, version: int, timeout: float = TIMEOUT_S, topic: str | None = None) -> None:
        """Blocks until that sealing of the version, or a later commit of a higher one, is served. A pinned version counts.

        Raises `ParamstreamTimeout` after `timeout` s, or the error that stopped the weights.
        """
        check_version(version)
        deadline = time.monotonic() + timeout
        name = self._topic(topic).record.name

        def reached() -> bool:
            now = self._topic(name)
            served, kept = now.served, now.find(version)
            return served is not None and (
                served.version >= version or (kept is not None and kept.position <= served.position)
            )

        self._waits.until(
            reached, deadline, f"version {version}", lambda partition: partition == self._topic(name).weight_partition
        )

    def bind(
        self,
        module: torch.nn.Module,
        rename: Rename | None = None,
        strict: bool = True,
        topic: str | None = None,
        follow: bool = True,
        cast: Cast = "none",
    ) -> Bound:
        """Keep `module` at the version served: parameters and buffers are overwritten in place, between forwards.

        With a version served already, the module has it when this returns. `rename` gives the module's name for a name of the
        stream: a mapping, or a function that must be quick. `strict`: names, shapes and dtypes must then be those of the version,
        else `SchemaMismatch` lists what does not match; not strict, what matches is taken, if anything does. A later version
        that does not match is not taken: `bound.error` and the status say why, `bound.report` how much fits. Values are converted
        only where `cast` says so: "exact" to dtypes that hold each value of the version's dtype, "lossy" to any, as torch rounds.
        With `follow=False` further versions are taken by `bound.switch` only.
        """
        from .bound import Bound, TopicView

        if cast not in ("none", "exact", "lossy"):
            raise InvalidEvent(f"cast={cast!r} is neither 'none', 'exact' nor 'lossy'")

        name = self._topic(topic).record.name

        def find(version: int) -> Sealed:
            state = self._topic(name)
            found = state.find(version)
            if found is None:
                raise self._not_held(state, version)
            return found

        view = TopicView(name, lambda: self._topic(name).served, find, lambda sealed: self._view(name, sealed))
        bound = Bound(module, view, rename=rename, strict=strict, cast=cast, follow=follow)
        if bound.error is not None:
            bound.close()
            raise bound.error
        bound.on_close = lambda: self._forget(bound)
        with self._sink.changed:
            self._sink.bounds = (*self._sink.bounds, bound)
        self._bound.append(bound)
        bound.refresh()
        return bound

    def on_switch(self, function: Callable[[VersionInfo], None]) -> None:
        """Call `function` after each change of the version served, of any topic, by a commit, a rollback, or a loss.

        It runs in the replica's own thread, in the order of the switches, and may read the replica; it must be quick, and must
        not wait for the replica, which applies nothing meanwhile. What it raises shows in the status, and ends nothing.
        """
        with self._sink.changed:
            self._sink.listeners = (*self._sink.listeners, function)

    def rollback(self, version: int, timeout: float = TIMEOUT_S, topic: str | None = None) -> None:
        """Serve `version` until `follow` is called: the pinned version is served when this returns.

        What is committed meanwhile is staged, kept within `keep_versions`, and not served; rows and KV stay at the head. Bound
        modules that follow go back too, at their next gap. A version that is no longer kept is fetched from the log again, or else
        from the snapshots in `snapshot_dir`; the store needs room for it beside the versions kept. A pinned version that turns out to be lost is not served any more.

        Raises `VersionNotHeld` where neither replica, log nor snapshot has it, `LogTruncated`, `StorageFull`, `ParamstreamTimeout`; what
        was served before is served on.
        """
        check_version(version)
        self._pinning.pin(self._topic(topic), version, time.monotonic() + timeout)

    def follow(self, topic: str | None = None) -> None:
        """Serve the newest version again, and each that is committed. Nothing changes where no version is pinned."""
        self._pinning.unpin(self._topic(topic))

    def demote(self, topic: str | None = None) -> None:
        """Move the weights of a topic, or of all, to SSD and give their DRAM back: for engines that sleep between rollouts.

        Every version kept goes, the one served too. What is committed from now on is applied and served as ever, and moved there as
        well. Whoever reads weights, by `weights` or in a hold, has that version brought back and ends the rest, as `promote` does.
        A version that somebody still reads (a `Weights`, or an array of one) follows when it is let go. A bound module has values of
        its own, which stay where they are, and takes new versions as before. Blocks for the disk.

        Raises `InvalidEvent` where the store has no ssd tier, `StorageFull` where SSD does not take all of it: the rest stays in DRAM,
        and goes as soon as there is room.
        """
        self._resting.demote(self._states(topic))

    def promote(self, topic: str | None = None, timeout: float = TIMEOUT_S) -> None:
        """Bring the version served of a topic, or of all, back to DRAM, where it and what comes then stay. Blocks for the disk.

        Other kept versions come back when they are asked for. What SSD gives back wrong is fetched again from the log, or a snapshot in
        `snapshot_dir`. Raises `StorageFull` where DRAM has no room, `CorruptTier` where the bytes are found nowhere.
        """
        self._resting.promote(self._states(topic), timeout)

    # --- entries --------------------------------------------------------------------------------------------------------------

    def get(self, key: bytes | str, topic: str | None = None) -> bytes | None:
        """The value under `key`. None where there is none, its time is over, or it is valid for another version than the one
        served. Blocks for the disk only, where the value lies on SSD.

        What SSD gives back wrong is fetched from the log again; raises `CorruptTier` where that does not have it any more: the next put
        of the key mends that.
        """
        return self._get(self._topic(topic), key)

    def get_many(self, keys: Iterable[bytes | str], topic: str | None = None) -> list[bytes | None]:
        """The values in the order asked. Each key is read by itself: events may be applied in between."""
        state = self._topic(topic)
        return [self._get(state, key) for key in keys]

    # --- other processes --------------------------------------------------------------------------------------------------------

    def serve(
        self, bind: str = "tcp://127.0.0.1:0", *, insecure: bool = False, advertise: str | None = None
    ) -> Serving:
        """Answer `client.lookup` and `client.get` of other processes and hosts at `bind` (port 0 for any free one), from here on until
        what is returned, or the replica, is closed. Clients find it by what the replica reports: `advertise` is the address that they
        are told, where that is not the one bound.

        A thread of its own answers, beside the one that applies. Raises `AccessDenied` for an address beyond loopback without
        `insecure`, `BindFailed` where it cannot be taken, `InvalidEvent` where this replica serves already, or follows nothing.
        """
        self._check_open()
        with self._sink.changed:
            if self._serving is not None and not self._serving.closed:
                raise InvalidEvent(
                    f"this replica serves at {self._serving.endpoint} already", remedy="Close that first"
                )
            source = ReplicaSource(
                self._core, self._sink, self._applier, self._looked_up, self._scope.state_partitions, self._get
            )
            self._serving = serving = Serving(
                source, bind, self.name, insecure=insecure, advertise=advertise, on_close=self._serves_no_more
            )
            self._sink.wakers = (serving.wake,)
        self._sink.serves_at(serving.endpoint)
        return serving

    # --- rows -----------------------------------------------------------------------------------------------------------------

    @overload
    def lookup(
        self, table: str, keys: Any, return_found: Literal[False] = False, topic: str | None = None, *,
        device: str | torch.device | None = None,
    ) -> Array: ...  # fmt: skip
    @overload
    def lookup(
        self, table: str, keys: Any, return_found: Literal[True], topic: str | None = None, *,
        device: str | torch.device | None = None,
    ) -> tuple[Array, Array]: ...  # fmt: skip
    def lookup(
        self, table: str, keys: Any, return_found: bool = False, topic: str | None = None, *,
        device: str | torch.device | None = None,
    ) -> Array | tuple[Array, Array]:  # fmt: skip
        """The rows under `keys`, in that order: (len(keys), dim) of the table's dtype, a copy. Never blocks for what is applied.

        `keys`: a sequence of ints, or a numpy array or torch tensor of int64 and one dimension; they may repeat. A key that has no row
        gets its initial value, by the table's definition, and no row is created. With `return_found` also which keys have one: bool,
        (len(keys),). What one event changed is seen whole or not at all, in each of its partition's look-ups of up to 16,384 keys.

        With `device` the rows are a torch tensor there, whatever `arrays` says, of the same bits: where the store has an HBM tier on that
        device, what is hot is gathered there, and the rest comes in one copy and is there the next time.

        Raises `UnknownTopic` for a table that is not known here, `InvalidEvent` for what is no row key, or one of a state partition that
        this replica does not follow, naming both.
        """
        record, flat = self._topic(topic).record, row_keys(table, keys)
        if device is not None:
            tensor, found = self._recorded(
                record, table, flat, lambda: self._on_device.look_up(record, table, flat, device)
            )
            return (tensor, handed_out(found, "torch")) if return_found else tensor
        values, found = self._looked_up(record, table, flat)
        given = handed_out(values, self._arrays)
        return (given, handed_out(found, self._arrays)) if return_found else given

    @contextmanager
    def hold_rows(self, table: str, keys: Any, topic: str | None = None) -> Generator[Held]:
        """The rows of a batch, unchanged while the block lasts: `values[index]` of what is held are those under `keys`, in order.

        `values` is the HBM tier's own memory where all rows are there, and else a copy; read it at `index` only, and do not write it.
        Prefetches for other batches go around what is held. Raises as `lookup`.
        """
        record, flat = self._topic(topic).record, row_keys(table, keys)
        with ExitStack() as block:
            hold = self._on_device.hold(record, table, flat)
            yield self._recorded(record, table, flat, lambda: block.enter_context(hold))

    def prefetch(self, table: str, keys: Any, topic: str | None = None) -> bool:
        """Rows under `keys` will be looked up soon: they are moved from SSD to DRAM, and to the HBM tier where there is one.

        For a data loader, some batches ahead. Returns at once; False where too many are waiting already, and these are read where
        they lie. `prefetches()` counts. Raises as `lookup`, and what could not be read since the last call.
        """
        record, flat = self._topic(topic).record, row_keys(table, keys)
        self._rows.spec(record, table)

        def move(keys: Keys) -> int:
            moved = self._rows.prefetch(record, table, keys)
            return moved if self._store.hbm is None else moved + self._on_device.prefetch(record, table, keys)

        return self._prefetcher.add(move, flat)

    def prefetches(self) -> Prefetches:
        """What prefetching has done here."""
        return self._prefetcher.counters()

    def table(self, table: str, topic: str | None = None) -> TableStatus:
        """How many rows the table has here, and what memory it takes. Raises `UnknownTopic` for one that is not known here."""
        record = self._topic(topic).record
        for found in self._rows.tables(record):
            if found.table == table:
                return found
        raise UnknownTopic("this replica knows no such table", topic=record.name, item=table)

    def export_table(
        self, table: str, path: str | os.PathLike[str], *, state: bool = False, topic: str | None = None
    ) -> int:
        """Write the table's rows, of the partitions followed, to a safetensors file with `keys`, int64 (n,), and `rows`, (n, dim); with
        `state` also the optimizer's, as `state`. Returns how many there are.

        Rows change while they are written: each is whole, and as it was at some moment of the call. Memory does not grow with the
        table; for a while the disk holds it twice. A file of that name is replaced as a whole at the end. Raises `UnknownTopic` for a
        table that is not known here, `StorageFull` or `CorruptLog` as the disk does, `InvalidEvent` where the optimizer's kind changes
        while its state is written.
        """
        record = self._topic(topic).record
        found = [(record.id, number) for number in self._scope.state_partitions(record)]
        defined = {p: tables[table] for p in found if table in (tables := self._applier.tables(p))}
        if not defined:
            raise UnknownTopic("this replica knows no such table", topic=record.name, item=table)
        definition = next(iter(defined.values())).definition
        rows = (
            batch
            for partition in defined
            for batch in rows_once(self._store.rows(partition, table, spec_of(definition)), definition)
        )
        return write_table(Path(path), definition, rows, state=state)

    # --- what was seen --------------------------------------------------------------------------------------------------------

    @property
    def vector(self) -> VersionVector[str]:
        """The closed vector of all that was applied: what a publish that observes this replica depends on."""
        with self._sink.changed:
            vector = self._core.vector()
        return self._directory.to_names(vector)

    def observed(self) -> tuple[VersionVector[str], Token | None]:
        """`vector`, and what stands for it in the history where the replica is recorded: for a publisher that observes it."""
        with self._sink.changed:
            vector = self._core.vector()
            token = None if self._recorder is None else self._recorder.observed(vector)
        return self._directory.to_names(vector), token

    def wait(self, target: VersionVector[str] | Accepted, timeout: float = TIMEOUT_S) -> None:
        """Blocks until all of a vector, or of what a receipt's events depend on and the events themselves, is applied.

        Partitions that are not followed are ignored. Raises `EventLost` for a position above its epoch's end (of a receipt:
        one of its own events, unless they go again: then those are waited for; what else was lost before them is not),
        `ParamstreamTimeout` after `timeout` s, or the error that stopped a partition waited for.
        """
        deadline = time.monotonic() + timeout
        if isinstance(target, VersionVector):
            vector = written = target
            self._directory.standing_ids(vector, must_be_known=True)
        elif not hasattr(cast(object, target), "accepted"):
            raise InvalidEvent(f"a receipt or a version vector can be waited for, not {type(target).__name__}")
        else:
            vector, written = target.accepted.result(timeout), target.positions
            self._directory.to_ids(written)
        try:
            self._wait(vector, written, deadline)
        except EventLost:
            if isinstance(target, VersionVector) or not target.goes_again:
                raise
            # The replica may hear of the loss before the producer does.
            vector = target.durable.result(time_left(deadline))
            self._wait(vector, target.positions, deadline)

    def _wait(self, vector: VersionVector[str], written: VersionVector[str], deadline: float) -> None:
        def lacks(partition: PartitionId) -> bool:
            """What is waited for there is not applied."""
            at = vector.get((self._directory.name_of(partition[0]) or "", partition[1]), START)
            return at > self._core.positions().get(partition, START)

        self._waits.until(self._waits.seen(vector, written), deadline, str(vector), lacks)

    def status(self) -> ReplicaStatus:
        """The state of this moment; it never says more than is known."""
        return status_of(self.name, self._sink, self._core, self._applier, self._directory, self._rows)

    def digest(self) -> str:
        """32 hexadecimal digits over the served version and all entries and rows not removed, of every topic: equal on equal replicas.
        It covers keys, values and optimizer's state, whichever tier they are in.

        Of one moment: rows are gone through while nothing is applied. Raises `CorruptTier` where SSD does not give what it took.
        """
        self._check_open()
        with self._sink.changed:
            held: list[TopicHeld] = []
            for state in self._applier.topics.values():
                served = state.served
                entries = [
                    item
                    for number in self._scope.state_partitions(state.record)
                    for item in self._store.entries((state.record.id, number)).items()
                ]
                weights = served.dense.digest if served is not None else b""
                held.append(TopicHeld(state.record.name, weights, entries, self._rows.digests(state.record)))
        # Entries never change: they are read from SSD with nothing held up.
        return digest_of(held)

    def snapshot(
        self,
        directory: str | os.PathLike[str] | None = None,
        timeout: float = TIMEOUT_S,
        *,
        topic: str | None = None,
        keep: int = KEEP,
    ) -> tuple[SnapshotInfo, ...]:
        """A snapshot of each topic (or of `topic`), in `directory` or else the replica's `snapshot_dir`, while it goes on applying.

        Holds the newest version of the weights and all rows and KV, of durable positions only: it waits until what it copied is
        durable. Of each topic the newest `keep` snapshots stay; one is removed only after a newer one is safe. Blocks for the disk.

        Raises `InvalidEvent` where there is no folder, `ParamstreamTimeout` after `timeout` s, `StorageFull` or `CorruptLog` where
        the disk takes nothing, `BindFailed` where another replica writes there; what was there before stays as it was.
        """
        self._check_open()
        chosen = directory if directory is not None else self._snapshot_dir
        if chosen is None:
            raise InvalidEvent(
                "a snapshot needs a folder", remedy="Give one, or make the replica with snapshot_dir=DIR"
            )
        if not isinstance(cast(object, keep), int) or keep < 1:
            raise InvalidEvent(f"keep={keep!r}: a whole number of snapshots stays, one at least")
        deadline = time.monotonic() + timeout
        states = list(self._applier.topics.values()) if topic is None else [self._topic(topic)]
        made: list[SnapshotInfo] = []
        for state in states:
            numbers = self._scope.state_partitions(state.record)
            manifest, path, digest = self._taking.take(Path(chosen), state, numbers, deadline, keep=keep)
            made.append(SnapshotInfo.of(manifest, path, digest, self._directory.to_names))
            if self._snapshot_dir is not None and Path(chosen) == self._snapshot_dir:
                with self._sink.changed:
                    self._sink.kept |= {(manifest.topic_id, kept.number): kept.floor for kept in manifest.state}
        return tuple(made)

    def write_back(
        self, changelogs: Changelogs, topic: str | None = None, partitions: Sequence[int] | None = None
    ) -> WriteBack:
        """Keep the changelogs of the topic's state partitions (or of these) up with this replica, until what is returned is closed.

        Raises `InvalidEvent` where the replica shows what could still be lost.
        """
        state = self._topic(topic)
        numbers = self._scope.state_partitions(state.record) if partitions is None else partitions
        writing = WriteBack(
            self._sink, self._core, self._applier, self._store, state.record, numbers, changelogs
        )  # fmt: skip
        writing.start()
        return writing

    def expiring(self, root: Path, delete: Delete, topic: str | None = None) -> Expiring:
        """What deletes the topic's rows whose time is over, by `delete`, at each of its steps; it keeps marks of time in `root`."""
        record = self._topic(topic).record
        return Expiring(
            self._sink, self._core, self._applier, self._store, (record.name, record.id), root, delete
        )  # fmt: skip

    # --- the end ----------------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self, timeout: float = TIMEOUT_S) -> None:
        """Stop following and give the memory back; weights handed out stay valid. A second call changes nothing."""
        if self._closed:
            return
        self._closed = True
        if self._serving is not None:
            self._serving.close(timeout)
        self._prefetcher.close(timeout)
        for bound in list(self._bound):
            bound.close()
        self._waits.close()
        self._link.close(timeout)
        self._give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside -----------------------------------------------------------------------------------------------------------------

    def _hello(self, name: str | None, deadline: float) -> Hello:
        """A name that somebody chose has one live owner; a random one is nobody else's."""
        if name is None:
            return Hello(FORMAT)
        incarnation: int = self._directory.request(OpenReplica(name), int, time_left(deadline))
        return Hello(FORMAT, name, incarnation)

    def _begin(self, beginning: Beginning, seeds: Sequence[Seed], make_link: MakeLink, deadline: float) -> None:
        for record in self._scope.records:
            self._applier.add(record, self._scope.state_partitions(record))
        for seed in seeds:
            beginning.use(seed)
        if not seeds:
            beginning.choose()
        beginning.fill(self._applier, make_link, self.name, deadline)

    @cached_property
    def _on_device(self) -> DeviceRows:
        from .device_rows import DeviceRows  # It imports torch.

        return DeviceRows(self._store, self._rows)

    def _give_back(self) -> None:
        self._applier.close()
        self._store.release()
        if self._own_store:
            self._store.close()

    def _start(self, deadline: float) -> None:
        for at in self._scope.latest:
            self._sink.jumps.begin(at)
        try:
            self._link.start(time_left(deadline))
            self._waits.until(self._waits.applied(self._scope.targets), deadline, "the start state")
            self._sink.jumps.while_behind = True
        except BaseException:
            self.close(timeout=1.0)
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise ParamstreamError("the replica is closed", remedy="Make another one")

    def _topic(self, name: str | None) -> TopicState:
        self._check_open()
        topics = list(self._applier.topics.values())
        if name is None:
            if len(topics) != 1:
                names = ", ".join(repr(state.record.name) for state in topics)
                raise InvalidEvent(f"this replica follows several topics ({names})", remedy="Say which with topic=")
            return topics[0]
        for state in topics:
            if state.record.name == name:
                return state
        raise UnknownTopic("this replica does not follow the topic", topic=name)

    def _states(self, topic: str | None) -> list[TopicState]:
        """The topic, or all."""
        self._check_open()
        return [self._topic(topic)] if topic is not None else list(self._applier.topics.values())

    def _retained(self, version: int | None, topic: str | None) -> tuple[TopicState, Sealed]:
        """The version served, or a kept one, which the caller is to release."""
        while True:
            state = self._topic(topic)
            sealed = state.served if version is None else state.find(version)
            if sealed is None:
                raise self._not_held(state, version)
            if sealed.dense.retain():
                return state, sealed

    def _get(self, state: TopicState, key: bytes | str) -> bytes | None:
        raw = key_bytes(key)
        number = partition_of(raw, state.record.partitions)
        if self._partitions is not None and number not in self._partitions:
            raise InvalidEvent(
                "the key belongs to a state partition that this replica does not follow",
                topic=state.record.name,
                partition=number,
                item=repr(raw[:64]),
            )
        partition = state.record.id, number
        if self._recorder is None:
            return self._value(state, partition, raw)
        with self._sink.changed:
            return self._value(state, partition, raw)

    def _value(self, state: TopicState, partition: PartitionId, key: bytes) -> bytes | None:
        at, heard, _ = self._sink.clock.get(partition, (0, 0.0, 0))
        now = at + int((time.monotonic() - heard) * 1e9) if at else 0
        entry = self._store.entries(partition).get(key, now)
        if entry is not None and entry.valid_for is not None:
            served = state.served
            if served is None or not served.may_be_read_beside(partition, entry.position, *entry.valid_for):
                return None
        if self._recorder is not None and not self._closed:  # What a close has given back already is no miss.
            self._recorder.reads_entry(partition, key, entry)
        if entry is None:
            return None
        # A recorded read is made under the lock, under which nothing may be waited for.
        return self._resting.value(state, partition, key, entry, mend=self._recorder is None)

    def _looked_up(self, record: TopicRecord, table: str, keys: Keys) -> FoundRows:
        return self._recorded(record, table, keys, lambda: self._rows.look_up(record, table, keys))

    def _recorded(self, record: TopicRecord, table: str, keys: Keys, read: Callable[[], _T]) -> _T:
        """What `read` gives of the rows under `keys`, and, in a replica that is recorded, of which positions they are."""
        if self._recorder is None:
            return read()
        with self._sink.changed:
            rows = read()
            if not self._closed:  # What a close has given back already is no miss.
                for number, key, position in self._rows.positions(record, table, keys[recorded_rows(keys)]):
                    self._recorder.reads_row((record.id, number), table, key, position)
            return rows

    def _not_held(self, state: TopicState, version: int | None) -> VersionNotHeld:
        kept = ", ".join(str(sealed.version) for sealed in state.versions.kept)
        if version is None:
            return VersionNotHeld("nothing has been committed yet", topic=state.record.name, remedy=_NONE_YET)
        return VersionNotHeld(
            f"the version is not kept here; kept are: {kept or 'none'}",
            topic=state.record.name,
            version=version,
            remedy="Give the replica a larger keep_versions",
        )

    def _view(self, topic: str, sealed: Sealed) -> Weights:
        """Of a version that the caller has retained."""
        state = self._topic(topic)
        state.rests = False
        self._resting.bring_back(state, sealed, TIMEOUT_S)
        mapping = sealed.dense.private() if self._arrays == "torch" else sealed.dense.shared()
        return Weights(topic, sealed, mapping, self._arrays, lambda: self._directory.to_names(sealed.vector))

    def _serves_no_more(self) -> None:
        self._sink.wakers = ()
        self._sink.serves_at("")

    def _forget(self, bound: Bound) -> None:
        with self._sink.changed:
            self._sink.bounds = tuple(known for known in self._sink.bounds if known is not bound)
        self._bound = [known for known in self._bound if known is not bound]


_NONE_YET = "Use wait_version; a replica that was restored to a moment before the first version has none"


def _check_options(keep_versions: int, catch_up: str, arrays: str | None, store: TieredStore | None) -> None:
    if not isinstance(cast(object, store), TieredStore | None):
        raise InvalidEvent(f"store={store!r} is no TieredStore")
    if not isinstance(cast(object, keep_versions), int) or keep_versions < 1:
        raise InvalidEvent(f"keep_versions={keep_versions!r}: a replica keeps a whole number of versions, one at least")
    if catch_up not in ("latest", "all"):
        raise InvalidEvent(f"catch_up={catch_up!r} is neither 'latest' nor 'all'")
    if arrays not in (None, "numpy", "torch"):
        raise InvalidEvent(f"arrays={arrays!r} is neither 'numpy' nor 'torch'")
