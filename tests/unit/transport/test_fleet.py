"""Several brokers are one to a link's handler: each message finds its broker, and all connections are lost and made anew together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pytest

from fakes.bare_broker import BareBroker
from fakes.link_recorder import Recorder
from paramstream.consistency.vector import PartitionId
from paramstream.errors import (
    ConnectFailed,
    NotOwner,
    OutcomeUnknown,
    ParamstreamError,
    ParamstreamTimeout,
    UnknownTopic,
)
from paramstream.events.codec import Head, encode_event
from paramstream.events.kinds import Note, Table
from paramstream.transport.calls import (
    CreateTable,
    CreateTopic,
    DeleteTopic,
    DescribePartitions,
    Join,
    Joined,
    JoinedPartition,
    ListTopics,
    PrepareCommit,
    TopicRecord,
)
from paramstream.transport.fleet import Fleet
from paramstream.transport.link import TICK_S, Link
from paramstream.transport.messages import (
    FORMAT,
    AnyMessage,
    Credit,
    Demoted,
    Fetch,
    Fetched,
    Follow,
    Goodbye,
    Heartbeat,
    Hello,
    Moved,
    Owner,
    Refused,
    Report,
    Request,
    Response,
    Unfollow,
    Welcome,
    encode_result,
)
from paramstream.transport.slots import META, SLOTS, slot_of
from paramstream.transport.wire import Message, WireError

TOPIC = 5
TOPICS = [TopicRecord("t", TOPIC, 8, "none", 8)]
QUIET_S = 5.0
"""A heartbeat so seldom that no silence matters here."""

ELSEWHERE = WireError.of(NotOwner("its slots have moved"))


def hello() -> Hello:
    return Hello(FORMAT)


def share(generation: int, *brokers: BareBroker, told: Sequence[BareBroker] = ()) -> None:
    """The slots go in turn to `brokers`, which all (or only those of `told`) say so to whoever greets them."""
    owners = tuple(
        Owner(broker.endpoint, broker.endpoint, tuple(range(at, SLOTS, len(brokers))))
        for at, broker in enumerate(brokers)
    )
    for at, broker in enumerate(brokers):
        if not told or broker in told:
            broker.welcome = Welcome(
                broker.endpoint, "tcp://*:1", (at + 1) << 20, QUIET_S * (at + 1), generation, owners
            )


def partition_of(at: int, brokers: int = 2) -> PartitionId:
    """A partition of the broker that is number `at` of so many."""
    return next((TOPIC, number) for number in range(99) if slot_of((TOPIC, number)) % brokers == at)


def event_of(partition: PartitionId) -> bytes:
    return bytes(encode_event(partition, Head("p", 1, 1), Note()))


def answers(result: object, error: WireError | None = None) -> Callable[[AnyMessage], list[Message | bytes]]:
    """Answers every request so."""

    def answer(message: AnyMessage) -> list[Message | bytes]:
        return [Response(message.id, encode_result(result), error)] if isinstance(message, Request) else []

    return answer


@contextmanager
def linked(endpoints: Sequence[str]) -> Generator[tuple[Link, Recorder]]:
    recorder = Recorder()
    link = Link(endpoints, recorder, hello, name="fleet-test")
    try:
        link.start(5.0)
        yield link, recorder
    finally:
        link.close(5.0)
        assert all(thread.name != "paramstream-fleet-test" for thread in threading.enumerate())


@pytest.fixture
def two() -> Iterator[list[BareBroker]]:
    """Two brokers of generation 1 that have every second slot each."""
    with BareBroker() as first, BareBroker() as second:
        share(1, first, second)
        yield [first, second]


def until(enough: Callable[[], bool], timeout: float = 5.0) -> None:
    deadline = time.monotonic() + timeout
    while not enough():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_each_event_goes_to_the_owner_of_its_partition(two: list[BareBroker]) -> None:
    frames = [event_of((TOPIC, number)) for number in range(16)]
    with linked([two[0].endpoint]) as (link, _):
        assert all(link.send(frame) for frame in frames)
        until(lambda: len(two[0].frames) + len(two[1].frames) == len(frames))
    for at, broker in enumerate(two):
        assert broker.frames == [frame for n, frame in enumerate(frames) if slot_of((TOPIC, n)) % 2 == at]
        assert broker.frames


def test_what_names_a_partition_goes_to_its_owner_and_the_rest_to_all(two: list[BareBroker]) -> None:
    of_first, of_second = partition_of(0), partition_of(1)
    for_first: list[Message] = [Follow(*of_first, 0, 100), Credit(*of_first, 7)]
    for_second: list[Message] = [Follow(*of_second, 0, 100), Unfollow(*of_second)]
    report = Report("r", (TOPIC,), (), b"", 0, ())
    with linked([two[1].endpoint]) as (link, _):
        for message in (*for_first, *for_second, report):
            assert link.send(message)
    until(lambda: all(broker.messages and broker.messages[-1] == Goodbye() for broker in two))
    assert two[0].messages == [*for_first, report, Goodbye()]
    assert two[1].messages == [*for_second, report, Goodbye()]


def test_the_welcome_of_several_holds_for_all_of_them(two: list[BareBroker]) -> None:
    with linked([two[1].endpoint]) as (_, recorder):
        welcome = recorder.welcomes[0]
    assert (welcome.window_bytes, welcome.heartbeat_s, welcome.generation) == (1 << 20, 2 * QUIET_S, 1)
    assert welcome.broker == "+".join(sorted(broker.endpoint for broker in two))
    assert all(len(broker.clients) == 1 for broker in two), "one connection to each, however the link found them"


def test_a_call_for_the_owner_of_meta_goes_there_alone(two: list[BareBroker]) -> None:
    owner, other = two[slot_of(META) % 2], two[1 - slot_of(META) % 2]
    owner.answer = answers(TOPICS)
    with linked([two[0].endpoint]) as (link, _):
        assert link.request(ListTopics(), list[TopicRecord], 5.0) == TOPICS
        assert not other.messages


def test_a_call_that_names_a_partition_goes_to_its_owner_alone(two: list[BareBroker]) -> None:
    topic, number = partition_of(1)
    two[1].answer = answers(3)
    with linked([two[0].endpoint]) as (link, _):
        assert link.request(PrepareCommit(topic, 1, (), partition=number), int, 5.0) == 3
        assert not two[0].messages


def test_the_answers_of_all_brokers_become_one(two: list[BareBroker]) -> None:
    joined = [JoinedPartition(*partition_of(at), at, None, 0, (), False, (), 0, 0) for at in range(2)]
    for at, broker in enumerate(two):
        broker.answer = answers(Joined((joined[at],)))
    with linked([two[0].endpoint]) as (link, _):
        assert link.request(Join("p", 1), Joined, 5.0) == Joined(tuple(joined))


def test_the_error_of_one_broker_is_the_calls_and_names_it(two: list[BareBroker]) -> None:
    two[0].answer = answers(Joined(()))
    two[1].answer = answers(None, WireError.of(UnknownTopic("never heard of", topic="t")))
    with linked([two[0].endpoint]) as (link, _), pytest.raises(UnknownTopic, match=two[1].endpoint) as caught:
        link.request(Join("p", 1), Joined, 5.0)
    assert caught.value.topic == "t"


def test_a_broker_that_answers_no_request_is_waited_for_up_to_the_deadline(two: list[BareBroker]) -> None:
    two[0].answer = answers(Joined(()))
    with (
        linked([two[0].endpoint]) as (link, _),
        pytest.raises(ParamstreamTimeout, match="did not answer Join within"),
    ):
        link.request(Join("p", 1), Joined, 0.2)


def test_a_table_is_made_by_the_owner_of_meta_before_the_others_hear_of_it(two: list[BareBroker]) -> None:
    at = slot_of(META) % 2
    owner, other = two[at], two[1 - at]
    heard: list[bool] = []

    def first(message: AnyMessage) -> list[Message | bytes]:
        if isinstance(message, Request):
            heard.append(bool(other.messages))
        return answers(False)(message)

    owner.answer, other.answer = first, answers(True)
    table = Table("rows", 4, "float32")
    with linked([two[0].endpoint]) as (link, _):
        assert link.request(CreateTable(TOPIC, table, exist_ok=False), bool, 5.0) is True
    asked = [message.call for message in (*owner.messages, *other.messages) if isinstance(message, Request)]
    assert heard == [False]
    assert asked == [CreateTable(TOPIC, table, exist_ok=False), CreateTable(TOPIC, table, exist_ok=True)]


def test_a_fetch_goes_to_the_owner_and_answers_of_two_are_not_mixed() -> None:
    with BareBroker() as first, BareBroker() as second, BareBroker() as one_fetches, BareBroker() as two_fetches:
        share(1, first, second)
        waiting: list[int] = []

        def begins(message: AnyMessage) -> list[Message | bytes]:
            """The answer to the first fetch is whole only after the second one."""
            assert isinstance(message, Fetch)
            if not waiting:
                waiting.append(message.id)
                return [Fetched(message.id, message.topic, message.partition, 1, 1, 1, sizes=(3,))]
            return [b"one"]

        def whole(message: AnyMessage) -> list[Message | bytes]:
            assert isinstance(message, Fetch)
            return [Fetched(message.id, message.topic, message.partition, 1, 1, 1, sizes=(3,)), b"two"]

        one_fetches.answer, two_fetches.answer = begins, whole
        for broker, fetches in ((first, one_fetches), (second, two_fetches)):
            assert broker.welcome is not None
            broker.welcome = Welcome("", fetches.endpoint, 1, QUIET_S, 1, broker.welcome.owners)

        class Fetching(Recorder):
            def tick(self, now: float) -> None:
                """Fetches belong to the link's thread."""
                if to_fetch and link.connected:
                    link.fetch(to_fetch.pop(0))

        to_fetch: list[Fetch] = []
        recorder = Fetching()
        link = Link([first.endpoint], recorder, hello)
        link.start(5.0)
        try:
            to_fetch.append(Fetch(1, *partition_of(0), 0, 9))
            until(lambda: bool(waiting))
            to_fetch.append(Fetch(2, *partition_of(1), 0, 9))
            until(lambda: len(recorder.fetches) == 1)
            to_fetch.append(Fetch(3, *partition_of(0), 0, 9))
            until(lambda: len(recorder.fetches) == 2)
        finally:
            link.close(5.0)
    assert [(answer.id, frames) for answer, frames in recorder.fetches] == [(2, [b"two"]), (1, [b"one"])]


def test_when_one_of_two_dies_all_is_lost_once_and_made_anew_once_with_the_new_map(two: list[BareBroker]) -> None:
    first, second = two
    with linked([first.endpoint]) as (link, recorder):
        share(2, second)
        first.close()
        recorder.wait_for(lambda told: told.count("connected") == 2)
        assert recorder.told == ["connected", "lost", "connected"]
        assert recorder.welcomes[1].generation == 2
        assert len(set(second.clients)) == 2, "a wholly new connection"
        assert link.send(event_of(partition_of(0)))
        until(lambda: len(second.frames) == 1)


def test_a_broker_that_falls_silent_ends_the_connections_to_the_others_too(two: list[BareBroker]) -> None:
    speaks, silent = two
    assert silent.welcome is not None
    silent.welcome = msgspec.structs.replace(silent.welcome, heartbeat_s=0.1)
    speaks.beats = True
    with linked([speaks.endpoint]) as (_, recorder):
        recorder.wait_for(lambda told: "lost" in told)
    assert f"{silent.endpoint}: the broker said nothing" in str(recorder.losses[0])


def test_a_broker_of_the_map_that_does_not_answer_is_named_at_the_deadline() -> None:
    with BareBroker() as broker, BareBroker(greets=False) as taking_over:
        share(1, broker, taking_over, told=[broker])
        link = Link([broker.endpoint], Recorder(), hello)
        with pytest.raises(ConnectFailed, match=f"{taking_over.endpoint} did not answer a hello"):
            link.start(1.5)


def test_a_broker_that_answers_late_is_waited_for() -> None:
    recorder = Recorder()
    with BareBroker() as broker, BareBroker(greets=False) as taking_over:
        share(1, broker, taking_over, told=[broker])
        link = Link([broker.endpoint], recorder, hello)
        timer = threading.Timer(1.2, share, (1, broker, taking_over))
        timer.start()
        try:
            assert link.start(10.0).generation == 1
        finally:
            timer.join()
            link.close(5.0)
    assert recorder.told[0] == "connected"


def test_the_greatest_generation_that_any_broker_tells_of_counts() -> None:
    with BareBroker() as left, BareBroker() as owner, BareBroker() as new:
        share(1, left, owner, told=[left])
        share(2, owner, new)
        with linked([left.endpoint]) as (_, recorder):
            assert recorder.welcomes[0].generation == 2
            assert recorder.welcomes[0].broker == "+".join(sorted((owner.endpoint, new.endpoint)))


def test_a_broker_of_an_older_generation_is_greeted_until_it_is_of_the_newest() -> None:
    recorder = Recorder()
    with BareBroker() as behind, BareBroker() as ahead:
        share(1, behind, ahead)
        share(2, behind, ahead, told=[ahead])
        link = Link([behind.endpoint], recorder, hello)
        with pytest.raises(ConnectFailed, match="not of one generation"):
            link.start(1.0)
        share(2, behind, ahead)
        with linked([behind.endpoint]) as (_, recorder):
            assert recorder.welcomes[0].generation == 2


@pytest.mark.parametrize(
    "slots",
    [[range(SLOTS - 1)], [range(SLOTS), [3]], [range(SLOTS), [SLOTS]], [[]]],
    ids=["none", "two", "more", "nobody"],
)
def test_a_map_that_does_not_give_every_slot_one_owner_connects_nobody(slots: Sequence[Sequence[int]]) -> None:
    with BareBroker() as broker, BareBroker() as other:
        owners = tuple(
            Owner(each.endpoint, each.endpoint, tuple(owned))
            for each, owned in zip((broker, other), slots, strict=False)
        )
        broker.welcome = Welcome(broker.endpoint, "tcp://*:1", 1, QUIET_S, 1, owners)
        with pytest.raises(ConnectFailed, match="which broker owns it"):
            Link([broker.endpoint], Recorder(), hello).start(0.5)
        assert not other.clients


def test_a_broker_without_slots_tells_of_the_others_and_is_asked_nothing() -> None:
    with BareBroker() as idle, BareBroker() as owner:
        owners = (Owner(idle.endpoint, idle.endpoint, ()), Owner(owner.endpoint, owner.endpoint, tuple(range(SLOTS))))
        for broker in (idle, owner):
            broker.welcome = Welcome(broker.endpoint, "tcp://*:1", 1, QUIET_S, 1, owners)
        with linked([idle.endpoint]) as (link, recorder):
            assert recorder.welcomes[0].broker == owner.endpoint
            assert link.send(event_of((TOPIC, 0)))
            until(lambda: len(owner.frames) == 1)
        assert not idle.messages


def test_a_link_finds_its_way_back_over_a_broker_that_the_user_did_not_name(two: list[BareBroker]) -> None:
    named, told = two
    with linked([named.endpoint]) as (link, recorder):
        named.close()
        recorder.wait_for(lambda told: "lost" in told)
        share(2, told)
        recorder.wait_for(lambda told: told.count("connected") == 2)
        assert link.connected


def test_what_comes_behind_moved_is_not_taken_any_more(two: list[BareBroker]) -> None:
    stale = Heartbeat(())

    def moves(message: AnyMessage) -> list[Message | bytes]:
        return [Moved(), stale, b"PS an event"] if isinstance(message, Request) else []

    two[0].answer = two[1].answer = moves
    with linked([two[0].endpoint]) as (link, recorder):
        with pytest.raises(OutcomeUnknown, match="no longer has all of its partitions"):
            link.request(DeleteTopic("t"), type(None), 5.0)
        recorder.wait_for(lambda told: told.count("connected") == 2)
        assert recorder.told == ["connected", "lost", "connected"]


def test_a_refused_request_is_asked_again_of_the_new_owner(two: list[BareBroker]) -> None:
    at = slot_of(META) % 2
    owner, other = two[at], two[1 - at]
    other.answer = answers(TOPICS)

    def moves(message: AnyMessage) -> list[Message | bytes]:
        share(2, other)
        return answers(None, ELSEWHERE)(message)

    owner.answer = moves
    with linked([owner.endpoint]) as (link, recorder):
        call = CreateTopic("t", 8, "none", 8, exist_ok=False)
        assert link.request(call, list[TopicRecord], 5.0) == TOPICS
        assert recorder.told == ["connected", "lost", "connected"]


def test_a_call_that_only_looks_is_asked_again_where_its_connection_goes(two: list[BareBroker]) -> None:
    first, second = two
    second.answer = answers([])

    def moves(message: AnyMessage) -> list[Message | bytes]:
        share(2, second)
        return [Moved()]

    first.answer = moves
    with linked([first.endpoint]) as (link, recorder):
        assert link.request(DescribePartitions(TOPIC), list[TopicRecord], 5.0) == []
        assert recorder.told == ["connected", "lost", "connected"]


def test_a_request_that_is_refused_for_good_ends_at_its_deadline(two: list[BareBroker]) -> None:
    two[0].answer = two[1].answer = answers(None, ELSEWHERE)
    with linked([two[0].endpoint]) as (link, _), pytest.raises(ParamstreamTimeout, match="DescribePartitions"):
        link.request(DescribePartitions(TOPIC), list[TopicRecord], 0.5)


def test_a_refused_request_that_nobody_waits_for_is_unknown(two: list[BareBroker]) -> None:
    two[0].answer = two[1].answer = answers(None, ELSEWHERE)
    outcome: list[ParamstreamError | None] = []
    with linked([two[0].endpoint]) as (link, _):
        link.request_async(ListTopics(), list[TopicRecord], lambda answer, error: outcome.append(error))
        until(lambda: bool(outcome))
    assert isinstance(outcome[0], OutcomeUnknown)


def test_a_table_whose_second_broker_goes_meanwhile_is_made_on_its_successor(two: list[BareBroker]) -> None:
    at = slot_of(META) % 2
    owner, other = two[at], two[1 - at]

    def moves(message: AnyMessage) -> list[Message | bytes]:
        share(2, owner)
        return [Moved()]

    owner.answer, other.answer = answers(False), moves
    with linked([owner.endpoint]) as (link, _):
        link.request(CreateTable(TOPIC, Table("rows", 4, "float32"), exist_ok=False), bool, 5.0)
    repeated = [message.call for message in owner.messages if isinstance(message, Request)][1]
    assert isinstance(repeated, CreateTable) and repeated.exist_ok, "what stands already is no error the second time"


@pytest.mark.parametrize(
    "refusal",
    [Refused(*partition_of(0), 1, 1, 0, ELSEWHERE), Demoted(*partition_of(0), 0, 0, ELSEWHERE)],
)
def test_a_refusal_by_who_is_not_the_owner_is_a_loss_and_no_answer(two: list[BareBroker], refusal: Message) -> None:
    def refuses(message: AnyMessage) -> list[Message | bytes]:
        return [refusal] if isinstance(message, Follow) else []

    two[0].answer = refuses
    with linked([two[0].endpoint]) as (link, recorder):
        assert link.send(Follow(*partition_of(0), 0, 9))
        recorder.wait_for(lambda told: told.count("connected") == 2)
        assert recorder.told == ["connected", "lost", "connected"]


def test_a_request_made_without_a_connection_is_sent_over_the_next_one() -> None:
    with BareBroker() as broker:
        endpoint = broker.endpoint
        with linked([endpoint]) as (link, recorder):
            broker.close()
            recorder.wait_for(lambda told: "lost" in told)
            outcome: list[object] = []
            asking = threading.Thread(
                target=lambda: outcome.append(link.request(ListTopics(), list[TopicRecord], 10.0)), name="asking"
            )
            asking.start()
            with BareBroker(answers(TOPICS), bind=endpoint):
                asking.join(10.0)
            assert outcome == [TOPICS]


def test_nothing_is_sent_by_a_closed_link() -> None:
    with BareBroker() as broker:
        with linked([broker.endpoint]) as (link, _):
            pass
        with pytest.raises(ParamstreamError, match="DeleteTopic was not sent: the client is closed"):
            link.request(DeleteTopic("t"), type(None), 5.0)


def test_a_link_without_messages_wakes_for_its_ticks_only(
    two: list[BareBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    receive = Fleet.receive

    def counted(fleet: Fleet, timeout_s: float, most: int) -> object:
        waits.append(timeout_s)
        return receive(fleet, timeout_s, most)

    monkeypatch.setattr(Fleet, "receive", counted)
    with linked([each.endpoint for each in two]):
        waits.clear()
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 6 * TICK_S)
        ticks = (time.monotonic() - began) / TICK_S
        assert 1 <= len(waits) <= 3 * ticks, "else it asks again and again in the last millisecond before each tick"
