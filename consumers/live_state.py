"""The state of a replica: topics followed into a store by the thread of a link, from what they begin with on.

All of a replica but what its users call: each of the parts that they read by (weights, entries, tables) reads this.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import cast

from ..errors import InvalidEvent
from ..events.limits import check_name
from ..events.recording import process_name
from ..tiers.store import TieredStore
from ..transport.calls import OpenReplica
from ..transport.directory import Directory
from ..transport.messages import FORMAT, Hello
from .applying import Applier
from .beginning import Beginning, Start
from .feed import Feed
from .links import MakeLink
from .options import Options
from .recording import ReplicaRecorder
from .replica_sink import ReplicaSink
from .scope import Scope, time_left
from .subscription_core import SubscriptionCore
from .topics import Topics
from .waits import Waits


class LiveState:
    """Made with what it begins with; `start` has the link follow from there, `close` ends that and gives the memory back."""

    def __init__(
        self,
        topics: Sequence[str],
        name: str | None,
        options: Options,
        store: TieredStore | None,
        directory: Directory,
        make_link: MakeLink,
        deadline: float,
    ) -> None:
        """Raises as `Replica` does, with nothing kept."""
        if not isinstance(cast(object, store), TieredStore | None):
            raise InvalidEvent(f"store={store!r} is no TieredStore")
        self.name = name or f"replica-{uuid.uuid4().hex[:12]}"
        check_name("replica", self.name)
        self.options = options
        self.directory = directory
        self.make_link = make_link
        begins = Start.of(options.start, name, options.snapshot_dir)
        self.scope = Scope(
            topics, directory, begins.at, options.partitions, deadline, durable_only=options.durable_only
        )  # fmt: skip
        self._own_store = store is None
        self.store = store or TieredStore()
        self.applier = Applier(self.store, options.keep_versions)
        self.topics = Topics(self.applier)
        hello = self._hello(name, deadline)
        beginning = Beginning(begins, self.scope, every_version=options.every_version)
        self.store.claim(self.name, self.applier.in_dram)
        try:
            self._begin(beginning, deadline)
        except BaseException:
            self._give_back()
            raise
        self.core = SubscriptionCore(options.ordering, self.scope.starts, durable_only=options.durable_only)
        beginning.begin(self.core)
        self.recorder = self._recorder(hello)
        self.sink = ReplicaSink(
            self.name,
            self.core,
            self.applier,
            directory,
            self.scope.state_partitions,
            options.on_applied,
            every_version=options.every_version,
            recorder=self.recorder,
        )
        self.waits = Waits(self.sink, self.core, directory)
        feed = Feed(self.core, self.sink, self.sink.lock)
        self.link = make_link(feed, lambda: hello, f"replica-{self.name}")
        feed.link = self.sink.link = self.sink.jumps.link = self.link

    def start(self, deadline: float) -> None:
        """Blocks until the start state is applied."""
        for at in self.scope.latest:
            self.sink.jumps.begin(at)
        self.link.start(time_left(deadline))
        self.waits.until(self.waits.applied(self.scope.targets), deadline, "the start state")
        self.sink.jumps.while_behind = True

    def close(self, timeout: float) -> None:
        """Stop following and give the memory back."""
        self.waits.close()
        self.link.close(timeout)
        self._give_back()

    def _hello(self, name: str | None, deadline: float) -> Hello:
        """A name that somebody chose has one live owner; a random one is nobody else's."""
        if name is None:
            return Hello(FORMAT)
        incarnation: int = self.directory.request(OpenReplica(name), int, time_left(deadline))
        return Hello(FORMAT, name, incarnation)

    def _begin(self, beginning: Beginning, deadline: float) -> None:
        for record in self.scope.records:
            self.applier.add(record, self.scope.state_partitions(record))
        for seed in self.options.seeds:
            beginning.use(seed)
        if not self.options.seeds:
            beginning.choose()
        beginning.fill(self.applier, self.make_link, self.name, deadline)

    def _recorder(self, hello: Hello) -> ReplicaRecorder | None:
        options = self.options
        if options.history is None:
            return None
        process = process_name(self.name, hello.incarnation)
        return ReplicaRecorder(
            options.history, process, options.ordering, self.core, self.applier, self.directory.name_of
        )

    def _give_back(self) -> None:
        self.applier.close()
        self.store.release()
        if self._own_store:
            self.store.close()
