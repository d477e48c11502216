"""A client's connections to all brokers of one generation, which live and die together: what `transport.link` does with a thread.

The fleet, the questions and the merging of answers are the real ones; a connection is one of the simulation's network.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol, cast

import zmq

from paramstream.errors import NotOwner, ParamstreamError, ParamstreamTimeout
from paramstream.events.codec import Buffer, read_prefix
from paramstream.transport import connection as connections
from paramstream.transport.asking import Done, Question
from paramstream.transport.calls import (
    AwaitDurable,
    Call,
    DescribePartitions,
    Join,
    Joined,
    ListTopics,
    OpenProducer,
    PartitionRecord,
    TopicRecord,
)
from paramstream.transport.fleet import Fleet
from paramstream.transport.messages import (
    Demoted,
    Fetch,
    Goodbye,
    Hello,
    Moved,
    Owner,
    Refused,
    Request,
    Response,
    Welcome,
    encode_message,
)
from paramstream.transport.slots import SLOTS
from paramstream.transport.wire import Message, WireError

from .clock import Clock
from .network import Asked, Connection, FetchedFrames, Item, Network, Server, Told

KINDS: dict[type[Call], Any] = {
    AwaitDurable: list[tuple[int, int, int]],
    Join: Joined,
    OpenProducer: int,
    DescribePartitions: list[PartitionRecord],
    ListTopics: list[TopicRecord],
}

GREET_S = 1.0
SILENCE_S = 3.0
ANSWER_S = 10.0
ROUNDS = 4


class Client(Protocol):
    name: str

    def connected(self, connection: Any) -> None: ...
    def lost(self) -> None: ...
    def received(self, item: Item) -> None: ...


class Strand:
    """The client's end of one of the connections."""

    def __init__(self, fleet: SimFleet, address: str) -> None:
        self.fleet = fleet
        self.name = fleet.client.name
        self.address = address
        self.heard = fleet.clock.now
        self.welcome = Welcome("", "", 0, 0.0)
        self.connection: Connection | None = None

    @property
    def is_welcome(self) -> bool:
        return bool(self.welcome.broker)

    # As the real fleet and its questions use a connection.

    def attach(self, poller: zmq.Poller) -> None: ...

    def send_up(self, data: Buffer) -> bool:
        return self.connection is not None and self.connection.send(data)

    # As the network uses a client.

    def connected(self, connection: Connection) -> None:
        self.connection = connection
        connection.send(self.fleet.hello)

    def lost(self) -> None:
        self.fleet.end()

    def received(self, item: Item) -> None:
        self.heard = self.fleet.clock.now
        if isinstance(item, Welcome):
            self.welcome = item
            self.fleet.look()
        else:
            self.fleet.received(self, item)


class SimFleet:
    """From the first greeting to the end. The client has it as its connection while it is up."""

    def __init__(
        self,
        client: Client,
        hello: Hello,
        network: Network,
        clock: Clock,
        chance: random.Random,
        process_at: Callable[[str], Server | None],
    ) -> None:
        self.client = client
        self.hello = hello
        self.clock = clock
        self._network = network
        self._chance = chance
        self._process_at = process_at
        self._strands: list[Strand] = []
        self._rounds = 0
        self._until = clock.now + GREET_S
        self._fleet: Fleet | None = None
        self._questions: dict[int, Question] = {}
        self._numbers = count(1)
        self.joins: list[tuple[float, Joined]] = []
        """(when it was asked, what was answered)."""
        self.is_over = False

    @property
    def broker_name(self) -> str:
        """The same for ever: nobody looks for topics anew."""
        return "brokers"

    @property
    def is_up(self) -> bool:
        return self._fleet is not None and not self.is_over

    def serves(self, connection: Connection) -> bool:
        return any(strand.connection is connection for strand in self._strands)

    # --- its beginning ------------------------------------------------------------------------------------------------------

    def greet(self, address: str) -> None:
        process = self._process_at(address)
        if process is None:
            self.end()
            return
        strand = Strand(self, address)
        self._strands.append(strand)
        self._network.connect(strand, process)

    def look(self) -> None:
        """Somebody has answered: whether all have, in one generation."""
        if self.is_over or self._fleet is not None or not all(strand.is_welcome for strand in self._strands):
            return
        newest = max((strand.welcome for strand in self._strands), key=lambda welcome: welcome.generation)
        owners = [owner for owner in newest.owners if owner.slots]
        if sorted(slot for owner in owners for slot in owner.slots) != list(range(SLOTS)):
            self.end()
            return
        serving = [self._serving(owner, newest.generation) for owner in owners]
        for strand in [each for each in self._strands if each not in serving]:
            self._strands.remove(strand)
            self._drop(strand)
        missing = [owner.endpoint for owner, strand in zip(owners, serving, strict=True) if strand is None]
        if not missing:
            self._begin(owners, cast("list[Strand]", serving))
        elif self._rounds == ROUNDS:
            self.end()
        else:
            self._rounds += 1
            for address in missing:
                if not self.is_over:
                    self.greet(address)

    def _serving(self, owner: Owner, generation: int) -> Strand | None:
        current = [each for each in self._strands if each.welcome.generation == generation]
        by_id = next((each for each in current if each.welcome.broker == owner.broker), None)
        return by_id or next((each for each in current if each.address == owner.endpoint), None)

    def _begin(self, owners: Sequence[Owner], strands: list[Strand]) -> None:
        self._fleet = Fleet(cast("list[connections.Connection]", strands), [owner.slots for owner in owners])
        self.client.connected(self)

    # --- its life -----------------------------------------------------------------------------------------------------------

    def send(self, frame: Buffer | Message | Asked) -> bool:
        """From the client. False, with nothing sent, where it is over."""
        fleet = self._fleet
        if fleet is None or self.is_over:
            return False
        if isinstance(frame, Asked):
            call = cast("Call", frame.call)
            self.ask(call, self._told(call))
            return True
        if isinstance(frame, Message):
            return fleet.send(frame, encode_message(frame))
        prefix = read_prefix(frame)
        return fleet.owner((prefix.topic, prefix.partition)).send_up(frame)

    def ask(self, call: Call, done: Done) -> None:
        """Nothing where it is over; no answer where it ends meanwhile."""
        if self._fleet is not None and not self.is_over:
            number, asked_at = next(self._numbers), self.clock.now
            if isinstance(call, Join):
                done = self._noted(done, asked_at)
            question = Question(number, call, KINDS[type(call)], done, self.clock.now + ANSWER_S, waits=False)
            self._questions[number] = question
            question.ask(self._fleet)

    def fetch(self, message: Fetch) -> None:
        strand = self._owner((message.topic, message.partition))
        if strand is not None and strand.connection is not None:
            strand.connection.fetch(message)

    def server_of(self, partition: tuple[int, int]) -> Server | None:
        """Whom the client takes for the partition's owner."""
        strand = self._owner(partition)
        return None if strand is None or strand.connection is None else strand.connection.broker

    def received(self, strand: Strand, item: Item) -> None:
        if self.is_over or self._fleet is None:
            return
        match item:
            case Response():
                self._answered(strand, item)
            case Moved() | Goodbye():
                self.end()
            case Refused(error=error) | Demoted(error=error) if _is_elsewhere(error):
                self.end()
            case FetchedFrames(answer, _) if _is_elsewhere(answer.error):
                self.end()
            case Request():
                raise AssertionError(item)
            case _:
                self.client.received(item)

    def tick(self) -> None:
        now = self.clock.now
        if self.is_over:
            return
        if self._fleet is None:
            if now > self._until:
                self.end()
            return
        for number, question in list(self._questions.items()):
            question.send_rest()
            if now > question.deadline:
                del self._questions[number]
                question.done(None, ParamstreamTimeout("no answer in time"))
        if any(now - strand.heard > SILENCE_S for strand in self._strands):
            self.end()

    def end(self) -> None:
        """All connections are gone."""
        if self.is_over:
            return
        self.is_over = True
        for strand in self._strands:
            self._drop(strand)
        if self._fleet is not None:
            self.client.lost()

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _owner(self, partition: tuple[int, int]) -> Strand | None:
        if self._fleet is None or self.is_over:
            return None
        return cast("Strand", self._fleet.owner(partition))

    def _drop(self, strand: Strand) -> None:
        """The client closes it: nothing more of it is taken."""
        connection = strand.connection
        if connection is not None and connection in self._network.live:
            connection.down.clear()
            self._network.lose(connection, self._chance)

    def _answered(self, strand: Strand, response: Response) -> None:
        question = self._questions.get(response.id)
        if question is None:
            return
        outcome = question.take(cast("connections.Connection", strand), response)
        if outcome is None:
            if question.goes_on:
                question.go_on()
        elif isinstance(outcome[1], NotOwner):
            self.end()
        else:
            del self._questions[response.id]
            question.done(*outcome)

    def _noted(self, done: Done, asked_at: float) -> Done:
        def noted(answer: Any, error: ParamstreamError | None) -> None:
            if isinstance(answer, Joined):
                self.joins.append((asked_at, answer))
            done(answer, error)

        return noted

    def _told(self, call: Call) -> Done:
        def done(answer: Any, error: ParamstreamError | None) -> None:
            self.client.received(Told(call, answer if error is None else error))

        return done


def _is_elsewhere(error: WireError | None) -> bool:
    return error is not None and error.code == NotOwner.__name__
