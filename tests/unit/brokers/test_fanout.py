"""Fan-out: who is sent what, within which credit, and who is demoted."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from paramstream.brokers.fanout import (
    MAX_CREDIT_BYTES,
    MIN_RING_BYTES,
    RING_BYTES,
    RINGS_BYTES,
    FanOutCore,
    Send,
    ring_share,
)
from paramstream.consistency.position import position
from paramstream.transport.messages import Demoted, Follow, Following, Heads

PARTITION = (77, 0)
EPOCH = 7
ENDS = ((6, position(6, 41)),)


def at(offset: int) -> int:
    return position(EPOCH, offset)


def frame(nbytes: int = 100, mark: int = 0) -> bytes:
    return bytes([mark]) * nbytes


def heads(accepted: int) -> Heads:
    return Heads(*PARTITION, accepted, accepted - 1, 0, 123)


def follow(core: FanOutCore, peer: bytes, after: int, head: int, credit: int = 1000) -> list[Send]:
    return list(core.follow(peer, Follow(*PARTITION, after, credit), heads(head), ENDS))


def events(sends: Iterable[Send]) -> list[tuple[bytes, int]]:
    return [(send.peer, send.position) for send in sends if isinstance(send.content, bytes)]


def test_a_follower_at_the_head_is_sent_what_is_accepted_from_then_on() -> None:
    core = FanOutCore()
    answer = Following(*PARTITION, at(3), at(3), at(3) - 1, ENDS, 123)
    assert follow(core, b"a", at(3), at(3)) == [Send(b"a", answer, at(3))]
    assert list(core.accepted(frame(), at(4))) == [Send(b"a", frame(), at(4))]
    assert core.sent(b"a") == at(4) and core.sent(b"b") == 0


def test_a_follower_behind_the_head_gets_what_the_ring_still_has() -> None:
    core = FanOutCore()
    for offset in range(1, 6):
        assert events(core.accepted(frame(), at(offset))) == []
    sends = follow(core, b"a", at(2), at(5))
    assert isinstance(sends[0].content, Following)
    assert events(sends) == [(b"a", at(3)), (b"a", at(4)), (b"a", at(5))]


def test_a_follow_from_before_the_ring_or_beyond_the_head_is_demoted() -> None:
    core = FanOutCore()
    for offset in (10, 11):
        list(core.accepted(frame(), at(offset)))
    for after in (at(8), at(12)):
        assert follow(core, b"a", after, at(11)) == [Send(b"a", Demoted(*PARTITION, after, at(11), ends=ENDS), after)]
    assert core.followers() == []
    assert isinstance(follow(core, b"a", at(9), at(11))[0].content, Following)


def test_an_empty_ring_serves_only_those_at_the_head() -> None:
    core = FanOutCore()
    assert isinstance(follow(core, b"a", at(0) - 5, at(0))[0].content, Demoted)
    assert isinstance(follow(core, b"a", at(0), at(0))[0].content, Following)


def test_nothing_is_sent_past_the_credit_and_returned_credit_lets_more_go() -> None:
    core = FanOutCore()
    follow(core, b"a", at(0), at(0), credit=250)
    sent = [events(core.accepted(frame(), at(offset))) for offset in (1, 2, 3, 4)]
    assert sent == [[(b"a", at(1))], [(b"a", at(2))], [], []]
    assert events(core.credit(b"a", 100)) == [(b"a", at(3))]
    # Credit is told in all since the follow: an old word changes nothing, and none frees more than was sent.
    assert events(core.credit(b"a", 100)) == []
    assert events(core.credit(b"a", 10**9)) == [(b"a", at(4))]
    assert events(core.credit(b"stranger", 5)) == []


def test_one_event_goes_out_however_small_the_credit_is() -> None:
    core = FanOutCore()
    follow(core, b"a", at(0), at(0), credit=1)
    assert events(core.accepted(frame(), at(1))) == [(b"a", at(1))]
    assert events(core.accepted(frame(), at(2))) == []
    assert events(core.credit(b"a", 99)) == []
    assert events(core.credit(b"a", 100)) == [(b"a", at(2))]


def test_one_slow_follower_holds_up_nobody_and_is_demoted_when_it_falls_out_of_the_ring() -> None:
    core = FanOutCore(ring_bytes=300)
    follow(core, b"slow", at(0), at(0), credit=100)
    follow(core, b"fast", at(0), at(0), credit=10**6)
    for offset in (1, 2, 3, 4):
        assert (b"fast", at(offset)) in events(core.accepted(frame(), at(offset)))
    sends = list(core.accepted(frame(), at(5)))
    assert sends[0] == Send(b"slow", Demoted(*PARTITION, at(1), at(5)), at(1))
    assert events(sends) == [(b"fast", at(5))]
    assert core.followers() == [b"fast"]
    assert core.kept_bytes == 300
    # Once it has fetched to near the head it follows again.
    assert events(follow(core, b"slow", at(4), at(5), credit=100)) == [(b"slow", at(5))]


def test_a_frame_larger_than_the_ring_is_kept_until_the_next_one() -> None:
    core = FanOutCore(ring_bytes=50)
    follow(core, b"a", at(0), at(0))
    assert events(core.accepted(frame(100), at(1))) == [(b"a", at(1))]
    assert core.kept_bytes == 100
    list(core.accepted(frame(10), at(2)))
    assert core.kept_bytes == 10


def test_a_peer_that_could_not_take_a_frame_stays_behind_it_and_is_tried_again() -> None:
    core = FanOutCore()
    follow(core, b"a", at(0), at(0))
    follow(core, b"b", at(0), at(0))
    got: list[tuple[bytes, int]] = []
    for send in core.accepted(frame(), at(1)):
        if send.peer == b"a":
            core.blocked(b"a", send.position)
        else:
            got.append((send.peer, send.position))
    assert got == [(b"b", at(1))]
    assert core.has_blocked and core.sent(b"a") == at(0)
    assert events(core.accepted(frame(), at(2))) == [(b"b", at(2))]
    assert events(core.retry()) == [(b"a", at(1)), (b"a", at(2))]
    assert not core.has_blocked and events(core.retry()) == []


def test_a_peer_that_blocks_midway_is_sent_nothing_more_in_that_round() -> None:
    core = FanOutCore()
    for offset in range(1, 5):
        list(core.accepted(frame(), at(offset)))
    taken: list[int] = []
    for send in core.follow(b"a", Follow(*PARTITION, at(0), 10**6), heads(at(4)), ENDS):
        if send.position == at(3):
            core.blocked(b"a", at(3))
        elif isinstance(send.content, bytes):
            taken.append(send.position)
    assert taken == [at(1), at(2)]
    assert core.sent(b"a") == at(2)
    assert events(core.credit(b"a", 200)) == [(b"a", at(3)), (b"a", at(4))]


def test_a_peer_that_is_gone_midway_is_sent_nothing_more() -> None:
    core = FanOutCore()
    for offset in range(1, 5):
        list(core.accepted(frame(), at(offset)))
    sends = core.follow(b"a", Follow(*PARTITION, at(0), 10**6), heads(at(4)), ENDS)
    assert [next(sends).position, next(sends).position] == [at(0), at(1)]
    core.unfollow(b"a")
    assert list(sends) == []
    core.blocked(b"a", at(1))
    core.unfollow(b"a")


def test_following_again_begins_anew_with_fresh_credit() -> None:
    core = FanOutCore()
    follow(core, b"a", at(0), at(0), credit=100)
    list(core.accepted(frame(), at(1)))
    assert events(core.accepted(frame(), at(2))) == []
    assert events(follow(core, b"a", at(1), at(2), credit=100)) == [(b"a", at(2))]


def test_a_new_epochs_record_follows_for_one_who_stands_at_or_above_the_end_before_it() -> None:
    core = FanOutCore()
    list(core.accepted(frame(), position(6, 41)))
    list(core.accepted(frame(), at(0)))
    for after in (position(6, 41), position(6, 99)):
        assert events(follow(core, b"a", after, at(0))) == [(b"a", at(0))]


@given(
    st.lists(st.tuples(st.sampled_from("afcur"), st.integers(0, 2), st.integers(1, 120)), max_size=60),
    st.integers(1, 300),
)
def test_whatever_happens_each_follower_sees_a_run_without_gaps_within_its_credit(
    steps: list[tuple[str, int, int]], ring_bytes: int
) -> None:
    core = FanOutCore(ring_bytes)
    head = 0
    seen: dict[bytes, list[int]] = {}
    outstanding: dict[bytes, int] = {}
    consumed: dict[bytes, int] = {}
    sizes: dict[int, int] = {}

    def take(sends: Iterable[Send], block: bytes | None = None) -> None:
        for send in sends:
            if isinstance(send.content, Following):
                seen[send.peer], outstanding[send.peer], consumed[send.peer] = [send.position], 0, 0
            elif isinstance(send.content, Demoted):
                seen.pop(send.peer, None)
            elif send.peer == block:
                core.blocked(send.peer, send.position)
            else:
                assert send.position == seen[send.peer][-1] + 1
                assert outstanding[send.peer] == 0 or outstanding[send.peer] + len(send.content) <= 150
                seen[send.peer].append(send.position)
                outstanding[send.peer] += len(send.content)

    for what, number, size in steps:
        peer = b"p%d" % number
        if what == "a":
            head += 1
            sizes[at(head)] = size
            take(core.accepted(frame(size), at(head)), block=peer if size % 3 == 0 else None)
        elif what == "f":
            take(core.follow(peer, Follow(*PARTITION, at(max(0, head - size % 4)), 150), heads(at(head)), ENDS))
        elif what == "c" and peer in seen:
            consumed[peer] += outstanding[peer]
            outstanding[peer] = 0
            take(core.credit(peer, consumed[peer]))
        elif what == "u":
            core.unfollow(peer)
            seen.pop(peer, None)
        elif what == "r":
            take(core.retry())
    assert set(core.followers()) == set(seen)
    assert core.kept_bytes <= max(ring_bytes, sizes.get(at(head), 0))
    for peer, positions in seen.items():
        assert core.sent(peer) == positions[-1]
    # With all credit returned and every pipe open each follower reaches the head.
    for peer in seen:
        for _ in range(head + 2):
            consumed[peer] += outstanding[peer]
            outstanding[peer] = 0
            take(core.credit(peer, consumed[peer]))
        assert seen[peer][-1] == at(head)


def test_thousands_who_do_not_read_cost_no_more_than_one() -> None:
    core = FanOutCore(ring_bytes=10_000)
    peers = [b"%d" % number for number in range(3_000)]
    for peer in peers:
        follow(core, peer, at(0), at(0), credit=300)
    sent = [send for offset in range(1, 500) for send in core.accepted(frame(), at(offset))]
    assert core.kept_bytes <= 10_000
    taken = [send for send in sent if isinstance(send.content, bytes)]
    assert len(taken) == 3 * len(peers), "each was sent its credit, and then nothing"
    assert len({id(send.content) for send in taken}) <= 3, "of frames that all share"
    assert len(sent) - len(taken) == len(peers) and core.followers() == []


def test_no_credit_lets_more_than_a_pipes_share_be_on_the_way() -> None:
    core = FanOutCore(ring_bytes=1 << 40)
    follow(core, b"greedy", at(0), at(0), credit=1 << 60)
    big = frame(1 << 20)
    sent = [send for offset in range(1, 100) for send in core.accepted(big, at(offset))]
    assert sum(len(send.content) for send in sent if isinstance(send.content, bytes)) == MAX_CREDIT_BYTES


def test_a_smaller_ring_holds_from_the_next_event_on() -> None:
    core = FanOutCore()
    for offset in range(1, 11):
        list(core.accepted(frame(), at(offset)))
    core.ring_bytes = 300
    list(core.accepted(frame(), at(11)))
    assert core.kept_bytes == 300


@given(st.integers(0, 10_000))
def test_the_rings_of_many_partitions_are_bounded_together(partitions: int) -> None:
    share = ring_share(partitions)
    assert MIN_RING_BYTES <= share <= RING_BYTES
    assert share * partitions <= max(RINGS_BYTES, MIN_RING_BYTES * partitions)
