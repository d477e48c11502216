"""What must hold, checked against the log alone: some of it at any moment, the rest once a world has healed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from paramstream.consistency.gate import Ordering
from paramstream.consistency.position import epoch_of, offset_of
from paramstream.consistency.vector import PartitionId
from paramstream.consumers.effects import Deliver
from paramstream.errors import CorruptLog, Fenced, StorageFull, VersionConflict
from paramstream.events.codec import EventFrame
from paramstream.events.kinds import Commit, Delete, Put
from paramstream.events.validate import put_values

from .consumer import SimConsumer
from .life import Life, wrong_values
from .recorded import history_problems
from .rows import writes_of_rows
from .shared_world import SharedWorld
from .standing import SimLog
from .states import Entries, changed_by
from .world import World
from .writes import Part, Write, write_of, write_of_version, writes_of_delete


def writes_in(frame: EventFrame) -> list[Write]:
    if isinstance(frame.payload, Commit):
        return [write_of_version(frame.payload.version)]
    if isinstance(frame.payload, Delete):
        return writes_of_delete(frame.payload.keys)
    if not isinstance(frame.payload, Put):
        return writes_of_rows(frame)
    return list(dict.fromkeys(write_of(bytes(value)) for _, value in put_values(frame.payload, frame.bulk)))


def problems(world: World) -> list[str]:
    """All that is broken once everything has healed. Each problem begins with the name of the check that found it."""
    world.check_logs()
    return (
        safety_problems(world)
        + _named("state", (p for c in world.consumers for p in _state(world, c)))
        + _named("history", _history(world))
        + _named("served", (p for c in world.consumers for p in _served(world, c)))
        + _named("stopped", (f"{c.name} at {p}: {e}" for c in world.consumers for p, e in c.stopped.items()))
    )


def safety_problems(world: World) -> list[str]:
    """All that is broken, at any moment."""
    found = _named("log", (problem for log in world.disk.logs.values() for problem in log.problems))
    found += _named("outcomes", _outcomes(world)) + _named("pasts", _pasts_stand(world))
    if isinstance(world, SharedWorld):
        found += _named("told", world.wrongly_told()) + _named("joins", world.joined_too_late())
    found += _named("fenced", _fenced_stay_out(world)) + _named("fenced", _fenced_rightly(world))
    for consumer in world.consumers:
        found += _named("delivery", consumer.told_problems())
        found += _named("seen once", _seen_once(world, consumer))
        for life in consumer.lives:
            found += _named("program order", _program_order(world, life))
            if consumer.ordering is Ordering.CAUSAL:
                found += _named("causal order", _causal_order(world, life))
        found += _named("durable only", _durable_only(consumer))
    return found


def _named(check: str, problems: Iterable[str]) -> list[str]:
    return [f"{check}: {problem}" for problem in problems]


def _durable_only(consumer: SimConsumer) -> Iterable[str]:
    if consumer.durable_only and consumer.undone:
        yield f"{consumer.name} was shown durable events only, and took {len(consumer.undone)} back"


def _outcomes(world: World) -> Iterable[str]:
    """Each call has its one outcome, and the log says the same."""
    standing: Counter[tuple[PartitionId, Write]] = Counter()
    for partition, log in world.disk.logs.items():
        for frame in log.events():
            standing.update((partition, write) for write in writes_in(frame))
    for (partition, write), times in standing.items():
        if times > 1:
            yield f"{write} stands {times} times in {partition}"
    newest: dict[str, int] = {}
    for producer in world.producers:
        newest[producer.name] = max(newest.get(producer.name, 0), producer.incarnation)
    for producer in world.producers:
        for made in producer.made:
            there = [partition for partition in made.keys if standing[partition, made.write]]
            finals = {outcome for outcome in made.outcomes if outcome not in ("accepted", "unknown", "pending")}
            if len(finals) > 1:
                yield f"{made.write} ended as {finals}"
            if "durable" in made.outcomes and len(there) != len(made.keys):
                yield f"{made.write} was durable and stands in {there} of {list(made.keys)}"
            if made.outcomes[-1:] == ["lost"] and len(there) == len(made.keys):
                yield f"{made.write} was lost and stands whole"
            fenced = isinstance(made.call.error, Fenced) and newest[producer.name] > made.write[1]
            if made.outcomes[-1:] == ["refused"] and not (
                fenced or isinstance(made.call.error, StorageFull | CorruptLog | VersionConflict)
            ):
                yield f"{made.write} was refused: {made.call.error}"
            if made.outcomes[-1:] == ["refused"] and len(there) == len(made.keys):
                yield f"{made.write} was refused and stands whole"


def _history(world: World) -> Iterable[str]:
    """As anybody can check it who lets everybody record."""
    pram_only = {consumer.name for consumer in world.consumers if consumer.ordering is Ordering.PRAM}
    return history_problems(world.history, pram_only)


def _fenced_rightly(world: World) -> Iterable[str]:
    names = Counter(producer.name for producer in world.producers)
    for producer in world.producers:
        if producer.fenced and names[producer.name] == 1 and not producer.left_opening:
            yield f"{producer.name}, though nobody else opens its name"


def _fenced_stay_out(world: World) -> Iterable[str]:
    """Once a newer session of a name has joined, nothing of an older one comes to stand anywhere."""
    for partition, log in world.disk.logs.items():
        for frame in log.events():
            head = frame.head
            for (name, incarnation), reached in world.fences.items():
                if name == head.producer and incarnation > head.incarnation and frame.position > reached[partition]:
                    yield f"{frame.position:x} of {partition} is of {name}/{head.incarnation}, which {incarnation} had fenced"


def _state(world: World, consumer: SimConsumer) -> Iterable[str]:
    for partition in consumer.follows:
        expected = fold(world.disk.log(partition))
        held = consumer.held(partition)
        if held != expected:
            yield f"{consumer.name} holds {held} of {partition}, the log says {expected}"


def _served(world: World, consumer: SimConsumer) -> Iterable[str]:
    """The newest version that the log has, with its right values."""
    for topic in consumer.topic_states():
        partition, served = topic.weight_partition, topic.served
        commits = [frame for frame in world.disk.log(partition).events() if isinstance(frame.payload, Commit)]
        if not commits and topic.record.persistence == "none" and topic.is_stale:
            continue
        if not commits or served is None:
            if commits or served is not None:
                yield f"{consumer.name} serves {served} of {partition}, the log says {commits[-1:]}"
        elif served.position != commits[-1].position:
            yield f"{consumer.name} serves {served.position:x} of {partition}, the log says {commits[-1].position:x}"
        else:
            for name in wrong_values(served):
                yield f"{consumer.name} serves wrong values of {name} in version {served.version}"


def _seen_once(world: World, consumer: SimConsumer) -> Iterable[str]:
    """What somebody had applied and had to take back, or was dead by then, is never sent again by itself."""
    for partition in consumer.follows:
        events = world.disk.log(partition).events()
        positions = {frame.position for frame in events}
        standing = {write for frame in events for write in writes_in(frame)}
        for line in [*consumer.undone, *consumer.applied]:
            if isinstance(line, Deliver) and line.partition == partition and line.frame.position not in positions:
                again = standing.intersection(writes_in(line.frame))
                if again:
                    yield f"{consumer.name} applied {again} of {partition}, which was lost, and it stands"


def _pasts_stand(world: World) -> Iterable[str]:
    """No event names an own earlier write that was lost before its session joined the epoch that it went to."""
    positions = {partition: {record.position for record in log.records()} for partition, log in world.disk.logs.items()}
    joins: dict[str, list[tuple[int, dict[PartitionId, int]]]] = {}
    for producer in world.producers:
        joins.setdefault(producer.name, []).extend(producer.joins)
    for partition, log in world.disk.logs.items():
        for frame in log.events():
            head = frame.head
            # What the session knew when it joined the event's epoch.
            knew = next(
                epochs
                for incarnation, epochs in joins[head.producer]
                if (incarnation, epochs.get(partition)) == (head.incarnation, head.joined_epoch)
            )
            lost = [
                (other, at)
                for other, at in frame.stamp().own.items()
                if offset_of(at) and at not in positions[other] and epoch_of(at) < knew.get(other, 0)
            ]
            if lost:
                yield f"{writes_in(frame)} of {partition} rests on {lost}, which its producer knew to be lost"


def fold(log: SimLog) -> Entries:
    """The entries and rows of a state partition as every replica must have them."""
    entries: Entries = {}
    for frame in log.records():
        entries = changed_by(entries, frame)
    return entries


def _standing(world: World, life: Life) -> list[Deliver]:
    """What was applied and stands. What is lost may come late, and is taken back."""
    positions = {
        p: {frame.position for frame in world.disk.log(p).events()} for p in {line.partition for line in life.applied}
    }
    return [
        line for line in life.applied if isinstance(line, Deliver) and line.frame.position in positions[line.partition]
    ]


def _program_order(world: World, life: Life) -> Iterable[str]:
    """By the numbers that producers gave their calls, over all partitions followed."""
    last: dict[str, tuple[int, int]] = {}
    for line in _standing(world, life):
        for producer, incarnation, number in writes_in(line.frame):
            if (incarnation, number) < last.get(producer, (0, 0)):
                yield f"{life.home.name} applied {producer}/{incarnation}/{number} after {last[producer]}"
            last[producer] = incarnation, number


def _causal_order(world: World, life: Life) -> Iterable[str]:
    """What a writer had read, or had read by way of others, is applied before what it wrote; as far as it stands."""
    pasts = Pasts(world)
    lines = _standing(world, life)
    place = {(write, line.partition): index for index, line in enumerate(lines) for write in writes_in(line.frame)}
    for (write, partition), index in place.items():
        late = [part for part in pasts.of(write) if place.get(part, -1) > index]
        if late:
            yield f"{life.home.name} applied {write} of {partition} before {late}"


class Pasts:
    """The past of each call: what its writer wrote and read before, with the pasts of that.

    A process that ends takes with it what it had read and said to nobody: the next one of its name has what stands.
    """

    def __init__(self, world: World) -> None:
        self._reads = {made.write: made.reads for producer in world.producers for made in producer.made}
        self._before: dict[Write, frozenset[Part]] = {}
        self._known: dict[Write, frozenset[Part]] = {}
        standing = {
            (write, partition)
            for partition, log in world.disk.logs.items()
            for frame in log.events()
            for write in writes_in(frame)
        }
        for producer in world.producers:
            written: set[Part] = set()
            for earlier, made in pairwise(producer.made):
                parts = {(earlier.write, partition) for partition in earlier.keys}
                written |= parts
                is_new = earlier.write[1] != made.write[1]
                self._before[made.write] = frozenset(written & standing if is_new else parts)

    def of(self, write: Write) -> frozenset[Part]:
        known = self._known.get(write)
        if known is None:
            direct = self._reads[write] | self._before.get(write, frozenset())
            known = self._known[write] = direct.union(*(self.of(other) for other in {other for other, _ in direct}))
        return known
