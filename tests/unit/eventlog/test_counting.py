"""Which records count, for every reader alike."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from paramstream.consistency.position import MAX_OFFSET, position
from paramstream.eventlog.counting import BEGINNING, Counting, Point
from paramstream.events.codec import decode_event, read_prefix
from paramstream.events.kinds import Base, Claim, Epoch, Note
from records.frames import make_frame


@dataclass
class Model:
    """The rule said in another way: positions as pairs, and no base."""

    claim: tuple[int, int] = (0, -1)
    """(epoch, nonce)"""
    epoch: int = 0
    next_offset: int = 0
    read: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def take(self, kind: str, epoch: int, nonce: int, offset: int) -> bool:
        if kind == "claim":
            if epoch > self.claim[0]:
                self.claim = (epoch, nonce)
                return True
            return False
        if (epoch, nonce) != self.claim:
            return False
        if kind == "epoch":
            if epoch <= self.epoch:
                return False
            self.epoch, self.next_offset = epoch, 1
            return True
        if (epoch, offset) != (self.epoch, self.next_offset):
            return False
        self.next_offset += 1
        self.read.append((epoch, offset))
        return True


def frame_of(kind: str, epoch: int, nonce: int, offset: int) -> bytearray:
    match kind:
        case "claim":
            return make_frame(Claim(epoch=epoch, nonce=nonce, owner="b"), position(epoch, 0), nonce)
        case "epoch":
            return make_frame(Epoch(previous_end=0), position(epoch, 0), nonce)
        case _:
            return make_frame(Note(), position(epoch, offset), nonce)


records = st.tuples(
    st.sampled_from(["claim", "epoch", "epoch", "note", "note", "note", "note"]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 3),
)


@settings(max_examples=400)
@given(st.lists(records, max_size=40))
def test_it_agrees_with_the_model_on_any_sequence_of_records(sequence: list[tuple[str, int, int, int]]) -> None:
    model, counting = Model(), Counting()
    for kind, epoch, nonce, offset in sequence:
        frame = frame_of(kind, epoch, nonce, offset)
        assert counting.takes(read_prefix(frame), frame) == model.take(kind, epoch, nonce, offset)
    if model.read:
        assert counting.reached == position(model.epoch, model.next_offset - 1)


@settings(max_examples=100)
@given(st.lists(records, max_size=30), st.integers(0, 30))
def test_reading_may_begin_at_any_point_that_was_noted(sequence: list[tuple[str, int, int, int]], at: int) -> None:
    counting = Counting()
    for record in sequence[:at]:
        counting.counts(decode_event(frame_of(*record)))
    other = Counting(counting.point)
    for record in sequence[at:]:
        frame = decode_event(frame_of(*record))
        assert counting.counts(frame) == other.counts(frame)
    assert counting.point == other.point


def counts(counting: Counting, frame: bytearray) -> bool:
    return counting.counts(decode_event(frame))


def test_a_base_counts_only_at_the_position_reached_under_its_writers_claim() -> None:
    counting = Counting(Point(4, 7, position(4, 12)))
    assert counts(counting, make_frame(Base(epoch=4), position(4, 12), 7))
    assert not counts(counting, make_frame(Base(epoch=4), position(4, 11), 7))
    assert not counts(counting, make_frame(Base(epoch=4), position(4, 12), 8))
    assert not counts(counting, make_frame(Base(epoch=3), position(4, 12), 7))
    assert counting.point == Point(4, 7, position(4, 12)), "a base takes no position"


def test_a_log_that_was_cut_begins_with_a_base_that_is_believed() -> None:
    counting = Counting()
    assert counting.point == BEGINNING
    assert counts(counting, make_frame(Base(epoch=4), position(4, 12), 7))
    assert counts(counting, make_frame(Note(), position(4, 13), 7))
    assert not counts(counting, make_frame(Base(epoch=9), position(9, 1), 7)), "only the first one"


def test_a_full_offset_opens_the_next_epoch_and_stands_for_a_claim() -> None:
    counting = Counting(Point(4, 7, position(4, MAX_OFFSET - 1)))
    over = make_frame(Epoch(previous_end=0), position(5, 0), 7)
    assert not counts(counting, over)
    assert counts(counting, make_frame(Note(), position(4, MAX_OFFSET), 7))
    assert not counts(counting, make_frame(Note(), position(5, 0), 7)), "offset 0 is for epoch records"
    assert counts(counting, over)
    assert counting.last_claim == 5
    assert not counts(counting, make_frame(Claim(epoch=5, nonce=9, owner="b"), 0, 9))
    assert counts(counting, make_frame(Note(), position(5, 1), 7))


def test_a_full_offset_under_anothers_claim_opens_nothing() -> None:
    counting = Counting(Point(4, 7, position(4, MAX_OFFSET)))
    assert counts(counting, make_frame(Claim(epoch=5, nonce=9, owner="b"), 0, 9))
    assert not counts(counting, make_frame(Epoch(previous_end=0), position(5, 0), 7))
    assert counts(counting, make_frame(Epoch(previous_end=0), position(5, 0), 9))
