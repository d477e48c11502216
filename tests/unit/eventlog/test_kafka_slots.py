"""Sharing out slots: everybody's map is the same, balanced, and moves as little as it must."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from paramstream.eventlog.kafka.group import SlotGroup
from paramstream.eventlog.kafka.membership import Claimant, SlotMap, decode_claimant, decode_map, encode, share_out
from paramstream.eventlog.kafka.settings import KafkaLog

SLOTS = 32


def claimant(broker: str, slots: tuple[int, ...] = (), number: int = 0) -> Claimant:
    return Claimant(broker, f"tcp://{broker}", number, slots, 0)


def following(slot_map: SlotMap, *brokers: str) -> dict[str, Claimant]:
    """The members of the map that are still there, and new ones."""
    held = {member.broker: member.slots for member in slot_map.members}
    return {f"id-{broker}": claimant(broker, held.get(broker, ()), slot_map.number) for broker in brokers}


def sizes(slot_map: SlotMap) -> list[int]:
    return sorted(len(member.slots) for member in slot_map.members)


def test_one_broker_has_all() -> None:
    slot_map = share_out({"id": claimant("a")}, SLOTS, 0)
    assert slot_map.slots_of("a") == frozenset(range(SLOTS))
    assert slot_map.slots_of("b") == frozenset()


def test_a_broker_that_comes_takes_its_share_and_the_others_keep_the_rest_of_theirs() -> None:
    one = share_out({"id-a": claimant("a")}, SLOTS, 0)
    two = share_out(following(one, "a", "b"), SLOTS, 0)
    three = share_out(following(two, "a", "b", "c"), SLOTS, 0)
    assert (sizes(two), sizes(three)) == ([16, 16], [10, 11, 11])
    for before, after in ((one, two), (two, three)):
        assert after.number > before.number
        for broker in ("a", "b"):
            kept = after.slots_of(broker) & before.slots_of(broker)
            assert len(kept) == min(len(after.slots_of(broker)), len(before.slots_of(broker)))


def test_what_a_broker_had_that_is_gone_goes_to_the_others_and_nothing_else_moves() -> None:
    one = share_out({name: claimant(name) for name in ("a", "b", "c")}, SLOTS, 0)
    two = share_out(following(one, "a", "c"), SLOTS, 0)
    assert one.slots_of("a") < two.slots_of("a") and one.slots_of("c") < two.slots_of("c")


def test_a_slot_that_two_say_they_had_goes_by_the_newer_map() -> None:
    old, new = claimant("old", tuple(range(16)), 4), claimant("new", tuple(range(16)), 5)
    slot_map = share_out({"1": old, "2": new}, SLOTS, 0)
    assert slot_map.slots_of("new") == frozenset(range(16))
    assert slot_map.number == 6


def test_a_number_is_above_the_clock_and_above_every_map_before() -> None:
    assert share_out({"1": claimant("a", (), 7)}, SLOTS, 100).number == 100
    assert share_out({"1": claimant("a", (), 700)}, SLOTS, 100).number == 701


def test_what_members_say_and_get_survives_the_wire() -> None:
    me = claimant("a", (1, 2), 3)
    slot_map = share_out({"1": me}, SLOTS, 0)
    assert (decode_claimant(encode(me)), decode_map(encode(slot_map))) == (me, slot_map)


held = st.lists(st.integers(-3, 40), max_size=40).map(tuple)


@given(st.dictionaries(st.text(max_size=4), st.tuples(held, st.integers(0, 5)), min_size=1, max_size=40))
def test_every_slot_has_one_owner_and_shares_differ_by_one(said: dict[str, tuple[tuple[int, ...], int]]) -> None:
    claimants = {name: claimant(name, slots, number) for name, (slots, number) in said.items()}
    slot_map = share_out(claimants, SLOTS, 0)
    given_out = sorted(slot for member in slot_map.members for slot in member.slots)
    assert given_out == list(range(SLOTS))
    assert max(sizes(slot_map)) - min(sizes(slot_map)) <= 1
    assert [member.id for member in slot_map.members] == sorted(claimants)
    assert slot_map == share_out(dict(reversed(claimants.items())), SLOTS, 0)


def test_a_stranger_in_the_group_gets_no_slots_and_ends_nobodys_membership() -> None:
    group = SlotGroup(
        KafkaLog("127.0.0.1:1"), name="a", broker="a", endpoint="tcp://a", slots=SLOTS, revoking=_pass, assigned=_pass
    )
    said = {"id-a": encode(claimant("a")), "id-b": encode(claimant("b", number=7)), "stranger": b"\x01", "late": b""}
    said["huge"] = encode(claimant("c", number=(1 << 64) - 1))
    try:
        shares = group.assign(None, {name: SimpleNamespace(user_data=data) for name, data in said.items()})
    finally:
        group.close()
    assert {name: len(share.partitions()) for name, share in shares.items()} == {"id-a": 16, "id-b": 16}


def _pass(what: object) -> None:
    """Nobody listens."""
