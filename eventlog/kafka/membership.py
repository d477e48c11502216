"""Who has which slots: what members tell each other through Kafka's group, and how the one that Kafka picks shares them out.

Every member says who it is and what it held; every assignment carries the whole map to everybody. A member keeps the slots
that it had as far as that is balanced.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...errors import CorruptLog

MAX_NUMBER = 1 << 63
"""Maps are counted from a clock in 1/64 s: none comes near."""


class Claimant(msgspec.Struct, array_like=True, frozen=True):
    """What a member says of itself when it joins."""

    broker: str
    """The broker's own id, new at each start."""
    endpoint: str
    """Where clients reach it."""
    number: int
    """Of the newest map that it has seen; 0: none."""
    slots: tuple[int, ...]
    """What it had in that map."""
    revision: int
    """Grows where the map does not show the member as it is: Kafka shares out anew only for a member that says something new."""


class Member(msgspec.Struct, array_like=True, frozen=True):
    """A broker in a map."""

    id: str
    """Kafka's name for the member."""
    broker: str
    endpoint: str
    slots: tuple[int, ...]
    """In order."""


class SlotMap(msgspec.Struct, array_like=True, frozen=True):
    """All brokers of a generation, and the slots of each. The same for everybody in it."""

    number: int
    """Greater than that of every map before."""
    members: tuple[Member, ...]

    def slots_of(self, broker: str) -> frozenset[int]:
        return frozenset(slot for member in self.members if member.broker == broker for slot in member.slots)

    def without_slots_of(self, broker: str) -> SlotMap:
        members = (msgspec.structs.replace(each, slots=()) if each.broker == broker else each for each in self.members)
        return SlotMap(self.number, tuple(members))


def share_out(claimants: Mapping[str, Claimant], slots: int, clock: int) -> SlotMap:
    """The next map, for members by Kafka's names for them. `clock` is a lower bound of its number.

    A slot that several say they had goes to the one that saw the newest map. The result depends on the arguments alone.
    """
    number = max([clock, *(each.number + 1 for each in claimants.values())])
    owner = dict[int, str]()
    for name, claimant in sorted(claimants.items(), key=lambda item: (item[1].number, item[0])):
        owner |= {slot: name for slot in claimant.slots if 0 <= slot < slots}
    held = {name: sorted(slot for slot, has in owner.items() if has == name) for name in sorted(claimants)}
    # One more for some where it does not come out even: for those that hold the most, so that the fewest move.
    least, more = divmod(slots, len(claimants))
    by_held = sorted(held, key=lambda name: (-len(held[name]), name))
    shares = {name: held[name][: least + (at < more)] for at, name in enumerate(by_held)}
    kept = {slot for share in shares.values() for slot in share}
    free = [slot for slot in range(slots) if slot not in kept]
    for at, name in enumerate(by_held):
        missing = least + (at < more) - len(shares[name])
        shares[name] = sorted(shares[name] + free[:missing])
        del free[:missing]
    members = [
        Member(name, each.broker, each.endpoint, tuple(shares[name])) for name, each in sorted(claimants.items())
    ]
    return SlotMap(number, tuple(members))


_claimants = msgspec.msgpack.Decoder(Claimant)
_maps = msgspec.msgpack.Decoder(SlotMap)
_encoder = msgspec.msgpack.Encoder()


def encode(value: Claimant | SlotMap) -> bytes:
    return _encoder.encode(value)


def decode_claimant(data: bytes) -> Claimant:
    """Raises `CorruptLog` where a stranger joined the group."""
    try:
        claimant = _claimants.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptLog(f"a member of the group does not say what brokers say: {error}") from error
    _check_number(claimant.number)
    return claimant


def decode_map(data: bytes) -> SlotMap:
    """Raises `CorruptLog` where a stranger shared out."""
    try:
        slot_map = _maps.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptLog(f"the group was given no map of slots: {error}") from error
    _check_number(slot_map.number)
    return slot_map


def _check_number(number: int) -> None:
    """The next one is greater, and must fit too."""
    if not 0 <= number < MAX_NUMBER:
        raise CorruptLog(f"no map of slots has the number {number}")
