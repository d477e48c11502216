"""One commit of parts that several producers published: what it names, and what it waits for before it is sent.

Whoever commits has not seen the tensors of other ranks, so the owner of the weight partition says what the parts come to
(`PrepareCommit`): the digest of digests, or what speaks against sealing them. The owner judges the commit itself once more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from ..consistency.position import show
from ..consistency.vector import VersionVector
from ..errors import EventLost, InvalidEvent, ParamstreamTimeout
from ..events.codec import encode_vector
from ..events.kinds import Commit, PartRef
from ..transport.calls import AwaitDurable, PrepareCommit, PreparedCommit, TopicRecord
from .calls import Call, Draft
from .directory import Directory
from .receipt import Receipt, ReceiptRecord
from .session import Session

_COMMIT_BYTES = 96
_PART_REF_BYTES = 24

Nameable = Receipt | VersionVector[str]


@dataclass(frozen=True, slots=True)
class Named:
    """What a commit names."""

    parts: tuple[PartRef, ...]
    must_be_durable: VersionVector[int]
    """Rows and KV: where the events of receipts stand, and what vectors say of state partitions."""
    needs: VersionVector[int]
    """Closed: all that, and what it depends on; without the commit's own partition."""
    rests_on: VersionVector[int]
    """Closed: what the parts depend on, beside that."""


@dataclass(frozen=True, slots=True)
class Sealing:
    """A commit under way: its settings, and when it gives up."""

    session: Session
    directory: Directory
    topic: TopicRecord
    version: int
    schema: str
    rewind: bool
    timeout: float
    deadline: float

    def run(self, given: Iterable[Nameable]) -> Receipt:
        """Holds its place among the session's calls while it waits. Past the deadline nothing was sent."""
        weights = self.topic.id, self.topic.partitions
        call = Call((weights,), self.topic.persistence, whole=True, version=self.version)
        session = self.session
        session.begin(call)
        with session.streaming(call):
            named = self._sort(given)
            self._await_durable(named.must_be_durable)
            question = PrepareCommit(
                self.topic.id, self.version, named.parts, self.schema, self.rewind, self.topic.partitions
            )
            prepared: PreparedCommit = session.ask(question, PreparedCommit, self._left("the answer of the owner"))
            if prepared.position:
                session.withdraw(call)
                return session.already(weights, self.topic.persistence, prepared.position, self.version)
            call.schema = prepared.schema
            needs = encode_vector(named.needs)
            commit = Commit(self.version, named.parts, prepared.digest, self.schema, self.rewind, needs)
            names_nbytes = sum(len(part.producer.encode()) + _PART_REF_BYTES for part in named.parts)
            # So the commit's vector is closed over its parts, and later events of this producer rest on all of it too.
            session.observe(named.rests_on.merge(named.needs))
            draft = Draft.of(weights, commit, (), _COMMIT_BYTES + names_nbytes + len(needs))
            session.add(call, draft, self._left("its turn"))
        return session.finish(call)

    def _sort(self, given: Iterable[Nameable]) -> Named:
        """Waits until receipts are accepted; raises what their events ended with."""
        parts: list[PartRef] = []
        durable: VersionVector[str] = VersionVector()
        closed: VersionVector[str] = VersionVector()
        beneath: VersionVector[str] = VersionVector()
        if isinstance(cast(object, given), Receipt) or not isinstance(cast(object, given), Iterable):
            raise InvalidEvent(
                f"parts are a list of receipts and version vectors, not {type(given).__name__}",
                topic=self.topic.name,
                version=self.version,
                remedy="Write parts=[receipt, ...]",
            )
        for each in given:
            if isinstance(each, VersionVector):
                durable, closed = durable.merge(self._of_state(each)), closed.merge(each)
                continue
            if not isinstance(cast(object, each), Receipt):
                raise InvalidEvent(
                    f"a commit names receipts and version vectors, not {type(each).__name__}",
                    version=self.version,
                    remedy="Use what publish_weights(..., seal=False) returned, or Receipt.parse(text)",
                )
            record = each.record(self._left("acceptance of what it names"))
            if record.parts:
                self._check_part(record)
                parts.extend(record.parts)
                beneath = beneath.merge(record.vector)
            elif record.version is not None:
                raise InvalidEvent(
                    f"the receipt is of version {record.version}, which is sealed already",
                    topic=self.topic.name,
                    version=self.version,
                    remedy="Name parts that were published with seal=False",
                )
            else:
                durable, closed = durable.merge(record.positions), closed.merge(record.vector)
        if not parts:
            raise InvalidEvent("a commit needs at least one part", topic=self.topic.name, version=self.version)
        for name, _ in durable:
            self._check_persistence(name)
        return Named(tuple(parts), self.directory.to_ids(durable), self._known(closed), self._known(beneath))

    def _check_part(self, record: ReceiptRecord) -> None:
        part = record.parts[0]
        what = f"part {part.sequence} of producer {part.producer!r} (incarnation {part.incarnation})"
        item = f"{part.producer}/{part.incarnation}/{part.sequence}"
        if (self.topic.name, self.topic.partitions) not in record.positions:
            raise InvalidEvent(f"{what} is of another topic", topic=self.topic.name, item=item, version=self.version)
        if record.version != self.version:
            raise InvalidEvent(
                f"{what} is of version {record.version}, not {self.version}",
                topic=self.topic.name,
                item=item,
                version=self.version,
                remedy="Commit parts of one version only",
            )

    def _of_state(self, vector: VersionVector[str]) -> VersionVector[str]:
        """What a vector says of rows and KV: weights in it are there because they were seen."""
        topics = {name: self.directory.topic(name) for name, _ in vector}
        return VersionVector({(name, n): at for (name, n), at in vector.items() if n < topics[name].partitions})

    def _check_persistence(self, name: str) -> None:
        if self.topic.persistence != "none" and self.directory.topic(name).persistence == "none":
            raise InvalidEvent(
                f'a commit of a topic with persistence "{self.topic.persistence}" cannot name events of {name!r}, '
                'which has "none": they do not last as long as the version',
                topic=self.topic.name,
                item=name,
                version=self.version,
                remedy='Keep them in a topic that lasts, or the weights in one with "none"',
            )

    def _known(self, closed: VersionVector[str]) -> VersionVector[int]:
        """By ids, without the commit's own partition, which is in order anyway, and without topics that are gone."""
        own = self.topic.id, self.topic.partitions
        # What is gone was seen long ago: what the commit names itself was looked up before.
        known = self.directory.standing_ids(closed)
        return VersionVector({partition: at for partition, at in known.items() if partition != own})

    def _await_durable(self, positions: VersionVector[int]) -> None:
        if not positions:
            return
        question = AwaitDurable(tuple((topic, number, at) for (topic, number), at in sorted(positions.items())))
        left = self._left("durability of what it names")
        try:
            lost: list[tuple[int, int, int]] = self.session.ask(question, list[tuple[int, int, int]], left)
        except ParamstreamTimeout as error:
            raise self._late("durability of what it names") from error
        for topic, number, at in lost:
            raise EventLost(
                f"the commit names {show(at)}, which is lost",
                topic=self.directory.name_of(topic),
                partition=number,
                position=at,
                version=self.version,
                remedy="Publish it again, and name that",
            )

    def _left(self, what: str) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self._late(what)
        return left

    def _late(self, what: str) -> ParamstreamTimeout:
        return ParamstreamTimeout(
            f"the commit of version {self.version} was not sent within {self.timeout:g} s: {what} did not come",
            topic=self.topic.name,
            version=self.version,
            remedy="Nothing was sent, and the parts are still open: commit again",
        )
