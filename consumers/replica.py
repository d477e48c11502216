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
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from ..consistency.gate import Ordering
from ..consistency.vector import VersionVector
from ..errors import InvalidEvent
from ..eventlog.changelog import Changelogs
from ..events.arrays import Array, ArrayKind, default_arrays
from ..events.limits import check_version
from ..events.recording import HistoryFile, Token
from ..tiers.store import TieredStore
from ..transport.directory import Directory
from .casting import Cast
from .changelog.writing import WriteBack
from .effects import Step
from .entry_reads import EntryReads
from .expiring import Delete, Expiring
from .links import MakeLink
from .live_state import LiveState
from .lookups.serving import Serving
from .lookups.source import ReplicaSource
from .matching import Rename
from .moment import digest_now, status_now
from .options import Options
from .pinning import Pinning
from .prefetching import Prefetches
from .resting import Resting
from .served_weights import ServedWeights
from .snapshots.asked import SnapshotInfo, Snapshots
from .snapshots.seeding import Seed
from .snapshots.writing import KEEP
from .status import ReplicaStatus, TableStatus
from .tables import Tables
from .version_info import VersionInfo
from .views import Weights
from .waits import Accepted

if TYPE_CHECKING:
    import torch

    from ..tiers.hbm import Held
    from .bound import Bound

TIMEOUT_S = 30.0


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
        deadline = time.monotonic() + timeout
        options = Options(
            ordering=ordering,
            start=start,
            catch_up=catch_up,
            visibility=visibility,
            keep_versions=keep_versions,
            partitions=partitions,
            arrays=default_arrays() if arrays is None else arrays,
            snapshot_dir=None if snapshot_dir is None else Path(snapshot_dir),
            seeds=seeds,
            on_applied=on_applied,
            history=history,
        )
        self._live = live = LiveState(topics, name, options, store, directory, make_link, deadline)
        self.name = live.name
        self._topics = live.topics
        self._pinning = Pinning(live)
        self._resting = Resting(live.store, self._pinning, make_link)
        self._weights = ServedWeights(live, self._resting)
        self._entries = EntryReads(live, self._resting)
        self._tables = Tables(live)
        self._snapshots = Snapshots(live)
        self._serving: Serving | None = None
        try:
            live.start(deadline)
        except BaseException:
            self.close(timeout=1.0)
            raise

    # --- weights --------------------------------------------------------------------------------------------------------------

    def weights(self, version: int | None = None, topic: str | None = None) -> Weights:
        """The version served, or a kept one: whole, without a copy. Blocks for the disk only, where the version lies on SSD.

        Raises `VersionNotHeld` before the first commit, or where the version is not kept; of one on SSD what `promote` raises.
        """
        if version is not None:
            check_version(version)
        return self._weights.read(version, topic)

    def wait_version(self, version: int, timeout: float = TIMEOUT_S, topic: str | None = None) -> None:
        """Blocks until that sealing of the version, or a later commit of a higher one, is served. A pinned version counts.

        Raises `ParamstreamTimeout` after `timeout` s, or the error that stopped the weights.
        """
        check_version(version)
        self._weights.wait(version, topic, time.monotonic() + timeout)

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
        return self._weights.bind(module, rename, strict, topic, follow, cast)

    def on_switch(self, function: Callable[[VersionInfo], None]) -> None:
        """Call `function` after each change of the version served, of any topic, by a commit, a rollback, or a loss.

        It runs in the replica's own thread, in the order of the switches, and may read the replica; it must be quick, and must
        not wait for the replica, which applies nothing meanwhile. What it raises shows in the status, and ends nothing.
        """
        sink = self._live.sink
        with sink.changed:
            sink.listeners = (*sink.listeners, function)

    def rollback(self, version: int, timeout: float = TIMEOUT_S, topic: str | None = None) -> None:
        """Serve `version` until `follow` is called: the pinned version is served when this returns.

        What is committed meanwhile is staged, kept within `keep_versions`, and not served; rows and KV stay at the head. Bound
        modules that follow go back too, at their next gap. A version that is no longer kept is fetched from the log again, or else
        from the snapshots in `snapshot_dir`; the store needs room for it beside the versions kept. A pinned version that turns out to be lost is not served any more.

        Raises `VersionNotHeld` where neither replica, log nor snapshot has it, `LogTruncated`, `StorageFull`, `ParamstreamTimeout`; what
        was served before is served on.
        """
        check_version(version)
        self._pinning.pin(self._topics.find(topic), version, time.monotonic() + timeout)

    def follow(self, topic: str | None = None) -> None:
        """Serve the newest version again, and each that is committed. Nothing changes where no version is pinned."""
        self._pinning.unpin(self._topics.find(topic))

    def demote(self, topic: str | None = None) -> None:
        """Move the weights of a topic, or of all, to SSD and give their DRAM back: for engines that sleep between rollouts.

        Every version kept goes, the one served too. What is committed from now on is applied and served as ever, and moved there as
        well. Whoever reads weights, by `weights` or in a hold, has that version brought back and ends the rest, as `promote` does.
        A version that somebody still reads (a `Weights`, or an array of one) follows when it is let go. A bound module has values of
        its own, which stay where they are, and takes new versions as before. Blocks for the disk.

        Raises `InvalidEvent` where the store has no ssd tier, `StorageFull` where SSD does not take all of it: the rest stays in DRAM,
        and goes as soon as there is room.
        """
        self._resting.demote(self._topics.each(topic))

    def promote(self, topic: str | None = None, timeout: float = TIMEOUT_S) -> None:
        """Bring the version served of a topic, or of all, back to DRAM, where it and what comes then stay. Blocks for the disk.

        Other kept versions come back when they are asked for. What SSD gives back wrong is fetched again from the log, or a snapshot in
        `snapshot_dir`. Raises `StorageFull` where DRAM has no room, `CorruptTier` where the bytes are found nowhere.
        """
        self._resting.promote(self._topics.each(topic), timeout)

    # --- entries --------------------------------------------------------------------------------------------------------------

    def get(self, key: bytes | str, topic: str | None = None) -> bytes | None:
        """The value under `key`. None where there is none, its time is over, or it is valid for another version than the one
        served. Blocks for the disk only, where the value lies on SSD.

        What SSD gives back wrong is fetched from the log again; raises `CorruptTier` where that does not have it any more: the next put
        of the key mends that.
        """
        return self._entries.get(self._topics.find(topic), key)

    def get_many(self, keys: Iterable[bytes | str], topic: str | None = None) -> list[bytes | None]:
        """The values in the order asked. Each key is read by itself: events may be applied in between."""
        state = self._topics.find(topic)
        return [self._entries.get(state, key) for key in keys]

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
        self._topics.check_open()
        live, sink = self._live, self._live.sink
        with sink.changed:
            if self._serving is not None and not self._serving.closed:
                raise InvalidEvent(
                    f"this replica serves at {self._serving.endpoint} already", remedy="Close that first"
                )
            self._serving = serving = Serving(
                ReplicaSource(live, self._entries, self._tables),
                bind,
                self.name,
                insecure=insecure,
                advertise=advertise,
                on_close=lambda: sink.serves_at(""),
            )
            sink.serves_at(serving.endpoint, serving.wake)
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
        values, found = self._tables.hand_out(self._topics.find(topic).record, table, keys, device)
        return (values, found) if return_found else values

    def hold_rows(self, table: str, keys: Any, topic: str | None = None) -> AbstractContextManager[Held]:
        """The rows of a batch, unchanged while the block lasts: `values[index]` of what is held are those under `keys`, in order.

        `values` is the HBM tier's own memory where all rows are there, and else a copy; read it at `index` only, and do not write it.
        Prefetches for other batches go around what is held. Raises as `lookup`.
        """
        return self._tables.hold(self._topics.find(topic).record, table, keys)

    def prefetch(self, table: str, keys: Any, topic: str | None = None) -> bool:
        """Rows under `keys` will be looked up soon: they are moved from SSD to DRAM, and to the HBM tier where there is one.

        For a data loader, some batches ahead. Returns at once; False where too many are waiting already, and these are read where
        they lie. `prefetches()` counts. Raises as `lookup`, and what could not be read since the last call.
        """
        return self._tables.prefetch(self._topics.find(topic).record, table, keys)

    def prefetches(self) -> Prefetches:
        """What prefetching has done here."""
        return self._tables.prefetches()

    def table(self, table: str, topic: str | None = None) -> TableStatus:
        """How many rows the table has here, and what memory it takes. Raises `UnknownTopic` for one that is not known here."""
        return self._tables.status(self._topics.find(topic).record, table)

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
        return self._tables.export(self._topics.find(topic).record, table, path, state=state)

    # --- what was seen --------------------------------------------------------------------------------------------------------

    @property
    def vector(self) -> VersionVector[str]:
        """The closed vector of all that was applied: what a publish that observes this replica depends on."""
        return self.observed()[0]

    def observed(self) -> tuple[VersionVector[str], Token | None]:
        """`vector`, and what stands for it in the history where the replica is recorded: for a publisher that observes it."""
        live = self._live
        with live.sink.changed:
            vector = live.core.vector()
            token = None if live.recorder is None else live.recorder.observed(vector)
        return live.directory.to_names(vector), token

    def wait(self, target: VersionVector[str] | Accepted, timeout: float = TIMEOUT_S) -> None:
        """Blocks until all of a vector, or of what a receipt's events depend on and the events themselves, is applied.

        Partitions that are not followed are ignored. Raises `EventLost` for a position above its epoch's end (of a receipt:
        one of its own events, unless they go again: then those are waited for; what else was lost before them is not),
        `ParamstreamTimeout` after `timeout` s, or the error that stopped a partition waited for.
        """
        self._live.waits.target(target, time.monotonic() + timeout)

    def status(self) -> ReplicaStatus:
        """The state of this moment; it never says more than is known."""
        return status_now(self._live, self._tables.reads)

    def digest(self) -> str:
        """32 hexadecimal digits over the served version and all entries and rows not removed, of every topic: equal on equal replicas.
        It covers keys, values and optimizer's state, whichever tier they are in.

        Of one moment: rows are gone through while nothing is applied. Raises `CorruptTier` where SSD does not give what it took.
        """
        self._topics.check_open()
        return digest_now(self._live, self._tables.reads)

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
        deadline, root = time.monotonic() + timeout, None if directory is None else Path(directory)
        return self._snapshots.take(self._topics.each(topic), root, deadline, keep)

    def write_back(
        self, changelogs: Changelogs, topic: str | None = None, partitions: Sequence[int] | None = None
    ) -> WriteBack:
        """Keep the changelogs of the topic's state partitions (or of these) up with this replica, until what is returned is closed.

        Raises `InvalidEvent` where the replica shows what could still be lost.
        """
        live, record = self._live, self._topics.find(topic).record
        numbers = live.scope.state_partitions(record) if partitions is None else partitions
        writing = WriteBack(live.sink, live.core, live.applier, live.store, record, numbers, changelogs)
        writing.start()
        return writing

    def expiring(self, root: Path, delete: Delete, topic: str | None = None) -> Expiring:
        """What deletes the topic's rows whose time is over, by `delete`, at each of its steps; it keeps marks of time in `root`."""
        live, record = self._live, self._topics.find(topic).record
        return Expiring(live.sink, live.core, live.applier, live.store, (record.name, record.id), root, delete)

    # --- the end ----------------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._topics.closed

    def close(self, timeout: float = TIMEOUT_S) -> None:
        """Stop following and give the memory back; weights handed out stay valid. A second call changes nothing."""
        if self.closed:
            return
        self._topics.close()
        if self._serving is not None:
            self._serving.close(timeout)
        self._tables.close(timeout)
        self._weights.close()
        self._live.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
