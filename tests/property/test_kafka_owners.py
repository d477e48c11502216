"""Owners of one partition in Kafka against a log that may delay, repeat and lose requests, and against each other.

Requests land late, twice, or after their sender gave up; owners pause, crash and take over at any step; strangers write
between. Whatever happens, what an owner calls durable is in the log for every reader, and what a takeover calls lost is not.
"""

import random
from dataclasses import dataclass, field

import pytest

from fakes.kafka_wire import Batch, KafkaInMemory, at_once
from paramstream.consistency.position import epoch_of
from paramstream.errors import Fenced
from paramstream.eventlog.counting import BEGINNING
from paramstream.eventlog.kafka.core import OwnerCore, Reread, Send, Stood
from paramstream.eventlog.kafka.records import MAX_VALUE_BYTES
from paramstream.eventlog.kafka.recovery import find
from paramstream.eventlog.kafka.scan import Scan, base_at
from paramstream.events.codec import EventFrame, decode_event
from paramstream.events.kinds import Kind
from records.frames import PARTITION, Owner
from reference.one_rule import Truth

RUNS = 150
STEPS = 500
OWNERS = 3


@dataclass
class Request:
    batch: Batch
    offset: int | None = None
    """Where it landed, the last time."""


@dataclass
class Broker:
    state: str = "down"
    """down, claims, opens, owns."""
    paused: bool = False
    core: OwnerCore = field(default_factory=lambda: OwnerCore(PARTITION, BEGINNING, 0))
    owner: Owner = field(default_factory=Owner)
    request: Request | None = None
    rereads: bool = False
    sent: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """Position → value of what it accepted and does not know to be durable."""
    bases: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(offset, position) of those that stand."""


class World:
    """All that happens is drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.kafka = KafkaInMemory()
        self.place = self.kafka.place(PARTITION)
        self.brokers = [Broker() for _ in range(OWNERS)]
        self.flying = list[Request]()
        self.accepted = dict[int, bytes]()
        """Every position ever given, by any owner."""
        self.held = set[int]()
        """Accepted, and neither durable nor lost: one producer stands for all."""
        self.durable = set[int]()
        self.lost = set[int]()
        self.tenures = 0

    def truth(self, end: int | None = None) -> Truth:
        records = self.kafka.records()
        return Truth().read(records if end is None else [record for record in records if record.offset < end])

    def step(self) -> None:
        broker = self.chance.choice(self.brokers)
        x = self.chance.random()
        if x < 0.015:
            broker.state = "down"
        elif x < 0.03:
            broker.paused = not broker.paused
        elif not broker.paused:
            try:
                self.act(broker)
            except Fenced:
                broker.state = "down"
        self.network()

    def act(self, broker: Broker) -> None:
        if broker.state == "down":
            if self.chance.random() < 0.1:
                self.start(broker)
        elif broker.request is not None:
            self.wait(broker, broker.request)
        elif broker.state == "owns" and self.chance.random() < 0.5:
            self.accept(broker)
        elif broker.state == "owns" and self.chance.random() < 0.05:
            self.cut(broker)
        else:
            self.work(broker)

    # A tenure.

    def start(self, broker: Broker) -> None:
        """Reads the log, and claims above what it finds."""
        found = at_once(find(self.place))
        truth = self.truth(found.end)
        assert (found.point.epoch, found.point.reached) == (truth.epoch, truth.reached)
        self.check_recovered(truth, [decode_event(frame) for frame in found.records], found.base)
        owner = Owner()
        owner.epoch, owner.nonce, owner.at = found.point.epoch, self.chance.getrandbits(31), found.point.reached
        broker.core = OwnerCore(PARTITION, found.point, found.end, found.base_offset, found.nbytes)
        broker.state, broker.owner, broker.request, broker.rereads = "claims", owner, None, False
        broker.sent, broker.bases = {}, []
        broker.core.append(owner.claim())

    def check_recovered(self, truth: Truth, records: list[EventFrame], base: memoryview | None) -> None:
        assert (base is None) == (not truth.bases)
        behind = 0 if base is None else decode_event(base).position
        assert base is None or behind == truth.bases[-1]
        values = {frame.position: bytes(frame.bulk) for frame in records if frame.kind is Kind.PUT}
        assert values == {at: value for at, value in truth.puts.items() if at > behind}

    def stood(self, broker: Broker, stood: Stood | None) -> None:
        for at, frame in enumerate([] if stood is None else stood.frames):
            offset = 0 if stood is None else stood.offset + at
            kind = frame.prefix.kind
            if kind is Kind.CLAIM:
                self.claimed(broker, offset)
            elif kind is Kind.EPOCH:
                self.opened(broker)
            elif kind is Kind.BASE:
                broker.bases.append((offset, frame.prefix.position))
            elif frame.prefix.position in broker.sent:
                del broker.sent[frame.prefix.position]
                self.durable.add(frame.prefix.position)
                self.held.discard(frame.prefix.position)

    def claimed(self, broker: Broker, offset: int) -> None:
        broker.state = "opens"
        truth = self.truth(offset)
        assert broker.core.known.reached == truth.reached, "it knows what stands before its claim"
        puts, found = truth.puts, [decode_event(frame) for frame in broker.core.others]
        assert all(frame.position in puts for frame in found if frame.kind is Kind.PUT)
        broker.owner.at = broker.core.known.reached
        broker.core.append(broker.owner.open_epoch())
        broker.core.append(self.base(broker))

    def opened(self, broker: Broker) -> None:
        """From here on it tells producers what stands and what is lost."""
        broker.state = "owns"
        self.tenures += 1
        puts = self.truth().puts
        for at in [at for at in self.held if epoch_of(at) < broker.owner.epoch]:
            self.held.discard(at)
            (self.durable if at in puts else self.lost).add(at)

    def accept(self, broker: Broker) -> None:
        for _ in range(self.chance.randint(1, 4)):
            value = self.chance.randbytes(12)
            frame = broker.owner.put(value)
            assert self.accepted.setdefault(broker.owner.at, value) == value, "a position names two events"
            broker.sent[broker.owner.at] = value
            self.held.add(broker.owner.at)
            assert broker.core.append(frame)
        if self.chance.random() < 0.1:
            assert broker.core.append(self.base(broker))

    def base(self, broker: Broker) -> bytearray:
        """Some take several records."""
        return broker.owner.base(bytes(self.chance.choice([30, 30, 30, MAX_VALUE_BYTES + 10, 2 * MAX_VALUE_BYTES])))

    def cut(self, broker: Broker) -> None:
        if broker.bases:
            offset, at = self.chance.choice(broker.bases)
            if offset > self.kafka.start:
                found = at_once(base_at(self.place, offset, self.kafka.end))
                assert found is not None and found[1].reached == at
                at_once(self.kafka.delete_records("topic", 0, offset))

    # Requests.

    def work(self, broker: Broker) -> None:
        if self.chance.random() < 0.02:
            broker.core.look()
        work = broker.core.work()
        if isinstance(work, Send):
            broker.request = Request(work.records)
            self.flying.append(broker.request)
        elif isinstance(work, Reread):
            self.reread(broker, work)

    def reread(self, broker: Broker, work: Reread) -> None:
        if work.offset < self.kafka.start:
            # Its own log was cut behind its back: by the owner after it.
            raise Fenced("cut by another owner")
        scan = Scan(self.place, work.offset, self.kafka.end)
        while not scan.is_done:
            if self.chance.random() < 0.1:
                return  # Kafka does not answer: the same again later.
            self.network()  # More comes while it reads.
            for whole in at_once(scan.page(self.chance.choice((1, 1 << 22)))):
                self.stood(broker, broker.core.met(whole))
                if whole.end % 16 == 0:
                    known = self.truth(broker.core.next_offset).reached
                    assert broker.core.known.reached == known, "a read amidst a reread would miss something"
        broker.core.reread_to(scan.offset)

    def wait(self, broker: Broker, request: Request) -> None:
        if request.offset is not None:
            broker.request = None
            self.stood(broker, broker.core.acked(request.offset))
        elif self.chance.random() < 0.1:
            broker.request = None
            broker.core.unsure()

    def network(self) -> None:
        if self.flying and self.chance.random() < 0.6:
            request = self.chance.choice(self.flying)
            x = self.chance.random()
            if x < 0.1:
                self.flying.remove(request)  # It never comes.
            elif x < 0.2:
                self.kafka.land(request.batch)  # The ack goes astray, and it is sent once more.
            else:
                self.flying.remove(request)
                request.offset = self.kafka.land(request.batch)
        elif self.chance.random() < 0.01:
            self.kafka.land([(None, memoryview(b"a stranger's record"))])
        elif self.chance.random() < 0.01:
            self.kafka.land_marker()

    def check(self) -> None:
        events = self.truth().puts
        values = list(events.values())
        assert len(values) == len(set(values)), "an event twice"
        assert all(self.accepted[at] == value for at, value in events.items())
        assert self.durable <= set(events), "durable and not in the log"
        assert not self.lost & set(events), "lost and in the log"
        assert not self.lost & self.durable


@pytest.mark.parametrize("seeds", range(0, RUNS, 30))
def test_what_owners_say_of_their_events_is_what_the_log_says(seeds: int) -> None:
    events = tenures = 0
    for seed in range(seeds, seeds + 30):
        world = World(seed)
        try:
            for _ in range(STEPS):
                world.step()
            world.check()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        events += len(world.durable)
        tenures += world.tenures
    assert events > 300 and tenures > 60, "the runs must get somewhere"
