"""`paramstream top`: what goes through a broker, who writes, who follows, and how far each hop is behind."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..client import Client, connect
from ..consistency.position import events_between, show
from ..errors import ParamstreamError
from ..transport.calls import BrokerRecord, FollowerRecord, PartitionLoad, ReplicaRecord
from .options import add_connect, add_json, seconds
from .output import print_json, table_lines
from .redraw import Redrawn
from .standing import StopSignal

NAME: str = "top"
HELP: str = "a live view of a broker: topics, heads, producers, replicas, and how far each hop is behind"

HOPS = """\
Each hop is told by what can be known of it:

  producer -> broker   idle: since a producer's last event came; last event: since the partition took one. What a producer
                       holds back, or has on its way, only the producer knows.
  broker -> durable    undurable: events accepted and not durable yet, and for how long the oldest of them has waited;
                       durable after: how long the last ones took.
  broker -> replica    lag: events that it has not applied; behind, stale: how many versions have been sealed since the one
                       that it serves, and for how long a newer one has been there. All as of its last report, heard so long
                       ago. unsent, outstanding: what the broker still has for its connection, and what is on the way; a
                       replica that is fetching fell too far behind for that, and reads from the log.
                       tiers: how full the budgets of its store are.
"""

MIB = 1024 * 1024

ANSWER_S = 2.0
"""How long a look waits for the broker before it says that there is no answer."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = HOPS
    add_connect(parser)
    add_json(parser, "look once, and print one JSON object on one line")
    parser.add_argument(
        "--interval", metavar="S", type=seconds, default=1.0, help="seconds between two looks (default %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    with connect(arguments.connect) as client:
        if arguments.json:
            print_json(record(client.describe_broker()))
        else:
            _watch(client, arguments.connect, arguments.interval)
    return 0


def _watch(client: Client, endpoint: str, interval_s: float) -> None:
    """Until SIGTERM or SIGINT. On a terminal each look takes the place of the one before; elsewhere they follow each other.

    A broker that does not answer is looked for until it is back.
    """
    stop, redrawn = StopSignal(), Redrawn(sys.stdout)
    before: BrokerRecord | None = None
    while True:
        try:
            now = client.describe_broker(max(interval_s, ANSWER_S))
        except ParamstreamError as error:
            if not error.retriable:
                raise
            before, shown = None, [f"{endpoint}: {error}"]
        else:
            shown = [f"{endpoint}: {_summary(now)}", *lines(now, before)]
            before = now
        if sys.stdout.isatty():
            redrawn.draw(shown)
        else:
            print(*shown, sep="\n", end="\n\n", flush=True)
        if stop.wait(interval_s):
            return


# --- as one object ------------------------------------------------------------------------------------------------------------


def record(broker: BrokerRecord) -> dict[str, object]:
    """The object of `--json`. Positions are `epoch:offset`; ages are in seconds; counts are since the broker took the
    partition over.
    """
    names = {topic.id: topic.name for topic in broker.topics}
    return {
        "broker": broker.broker,
        "clients": broker.clients,
        "log_bytes": broker.log_bytes,
        "log_limit": broker.log_limit,
        "topics": [
            {
                "name": topic.name,
                "persistence": topic.persistence,
                "partitions": [
                    _partition(load, topic.partitions) for load in broker.partitions if load.topic == topic.id
                ],
            }
            for topic in broker.topics
        ],
        "producers": [
            {
                "name": producer.name,
                "incarnation": producer.incarnation,
                "idle_s": producer.idle_s,
                "last": {f"{names[topic]}/{number}": show(at) for topic, number, at in producer.last if topic in names},
            }
            for producer in broker.producers
        ],
        "replicas": [_replica(broker, replica, names) for replica in broker.replicas if replica.topic in names],
        "subscriptions": [
            {"client": client, "topic": names[topic], **_following(broker, followed)}
            for (client, topic), followed in _subscriptions(broker).items()
            if topic in names
        ],
    }


def _partition(load: PartitionLoad, states: int) -> dict[str, object]:
    found: dict[str, object] = {
        "number": load.partition,
        "holds": "weights" if load.partition == states else "state",
        "accepted": show(load.accepted),
        "durable": show(load.durable),
        "last_event_s": _age(load),
        "undurable_events": events_between(load.durable, load.accepted),
        "undurable_s": load.undurable_s,
        "durable_after_s": load.durable_after_s,
        "log_bytes": load.log_bytes,
        "records": load.records,
        "bytes": load.nbytes,
        "kept_bytes": load.ring_bytes,
        "demotions": load.demotions,
        "error": load.error,
    }
    if load.newest is not None:
        age_s = (load.time - load.newest.time) / 1e9
        found["newest"] = {"version": load.newest.version, "position": show(load.newest.position), "age_s": age_s}
        found["versions"] = load.versions
    return found


def _replica(broker: BrokerRecord, replica: ReplicaRecord, names: dict[int, str]) -> dict[str, object]:
    return {
        "name": replica.name,
        "topic": names[replica.topic],
        "version": replica.version,
        "versions_behind": replica.versions_behind,
        "stale_s": replica.stale_s,
        "lag_events": replica.lag_events,
        "report_age_s": replica.report_age_s,
        "error": replica.error,
        "tiers": {tier: {"limit": limit, "held": held} for tier, limit, held in replica.tiers},
        **_following(broker, _followed_by(broker, replica)),
    }


def _following(broker: BrokerRecord, followed: Sequence[FollowerRecord]) -> dict[str, object]:
    """Between the broker and a follower's connection, over the partitions that it follows."""
    heads = {(load.topic, load.partition): load.accepted for load in broker.partitions}
    return {
        "follows": sorted(each.partition for each in followed),
        "fetching": sorted(each.partition for each in followed if not each.sent),
        "unsent_events": sum(
            events_between(each.sent, heads[each.topic, each.partition]) for each in followed if each.sent
        ),
        "outstanding_bytes": sum(each.outstanding_bytes for each in followed),
    }


def _followed_by(broker: BrokerRecord, replica: ReplicaRecord) -> list[FollowerRecord]:
    return [each for each in broker.followers if (each.name, each.topic) == (replica.name, replica.topic)]


def _subscriptions(broker: BrokerRecord) -> dict[tuple[str, int], list[FollowerRecord]]:
    """The partitions that followers without a name follow, by client and topic."""
    found: dict[tuple[str, int], list[FollowerRecord]] = {}
    for each in broker.followers:
        if not each.name:
            found.setdefault((each.client, each.topic), []).append(each)
    return found


def _age(load: PartitionLoad) -> float:
    return max(0, load.time - load.last_time) / 1e9


# --- as tables ----------------------------------------------------------------------------------------------------------------


def lines(now: BrokerRecord, before: BrokerRecord | None) -> list[str]:
    """The view. Rates are between two looks at one and the same broker."""
    names = {topic.id: topic.name for topic in now.topics}
    states = {topic.id: topic.partitions for topic in now.topics}
    earlier = {(each.topic, each.partition): each for each in before.partitions} if before else {}
    if before is not None and before.broker != now.broker:
        earlier = {}
    partitions = [
        _partition_row(load, names[load.topic], states[load.topic], earlier.get((load.topic, load.partition)))
        for load in now.partitions
        if load.topic in names
    ]
    producers = [(each.name, "-" if each.idle_s is None else _time(each.idle_s)) for each in now.producers]
    replicas = [_replica_row(now, each, names[each.topic]) for each in now.replicas if each.topic in names]
    shown = ["", *table_lines(PARTITION_HEADINGS, partitions)]
    if producers:
        shown += ["", *table_lines(("producer", "idle"), producers)]
    if replicas:
        shown += ["", *table_lines(REPLICA_HEADINGS, replicas)]
    return shown


PARTITION_HEADINGS = (
    "partition", "accepted", "durable", "undurable", "durable after", "last event", "records/s", "MiB/s", "log MiB",
    "version", "",
)  # fmt: skip

REPLICA_HEADINGS = (
    "replica", "topic", "version", "behind", "stale", "lag", "heard", "unsent", "outstanding", "tiers", ""
)  # fmt: skip


def _partition_row(load: PartitionLoad, topic: str, states: int, before: PartitionLoad | None) -> tuple[object, ...]:
    undurable = events_between(load.durable, load.accepted)
    records = mib = "-"
    if before is not None:
        passed_s = max(1e-9, (load.time - before.time) / 1e9)
        records = f"{(load.records - before.records) / passed_s:.0f}"
        mib = f"{(load.nbytes - before.nbytes) / passed_s / MIB:.2f}"
    return (
        f"{topic}/{'weights' if load.partition == states else load.partition}",
        show(load.accepted),
        show(load.durable),
        f"{undurable} for {_time(load.undurable_s)}" if undurable else "0",
        _time(load.durable_after_s),
        _time(_age(load)),
        records,
        mib,
        f"{load.log_bytes / MIB:.1f}",
        "" if load.newest is None else load.newest.version,
        load.error or (f"{load.demotions} demotions" if load.demotions else ""),
    )


def _replica_row(now: BrokerRecord, replica: ReplicaRecord, topic: str) -> tuple[object, ...]:
    followed = _followed_by(now, replica)
    between = _following(now, followed)
    note = replica.error
    if not note and between["fetching"]:
        note = "fetching"
    return (
        replica.name,
        topic,
        "-" if replica.version is None else replica.version,
        replica.versions_behind,
        "-" if replica.stale_s is None else _time(replica.stale_s),
        replica.lag_events,
        f"{_time(replica.report_age_s)} ago",
        between["unsent_events"] if followed else "gone",
        f"{sum(each.outstanding_bytes for each in followed) / MIB:.1f} MiB",
        ", ".join(f"{tier} {100 * held // max(1, limit)} %" for tier, limit, held in replica.tiers),
        note,
    )


def _summary(broker: BrokerRecord) -> str:
    used = 100 * broker.log_bytes / broker.log_limit
    log = f"log {broker.log_bytes / MIB:.1f} of {broker.log_limit / MIB:.0f} MiB ({used:.0f} %)"
    counts = f"{len(broker.producers)} producers, {len(_subscriptions(broker))} subscriptions"
    return f"{log}, {broker.clients} clients, {counts}"


def _time(seconds: float) -> str:
    """With as many digits as a reader wants."""
    if seconds < 1:
        return f"{1000 * seconds:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
