"""What every log promises, as one suite that the test class of each log inherits."""

from collections.abc import Iterator

import pytest

from paramstream.consistency.position import MAX_OFFSET, START, position
from paramstream.errors import CorruptLog, LogTruncated
from paramstream.eventlog.log import EventLog
from paramstream.events.kinds import Base, Epoch, Note
from records.frames import PARTITION, Owner, append_all, as_pairs, make_frame, read_all

LIMIT = 1 << 20


class LogSuite:
    """Give it the fixture `log`: an empty log of `LIMIT` bytes, closed by the fixture."""

    @pytest.fixture
    def log(self) -> Iterator[EventLog]:
        raise NotImplementedError
        yield

    def test_a_new_partition_holds_nothing(self, log: EventLog) -> None:
        partition = log.open(PARTITION)
        recovered = partition.recover()
        assert (recovered.base, list(recovered.records), recovered.last_claim, recovered.cut) == (None, [], 0, "")
        assert (partition.start, partition.nbytes, log.nbytes, log.partitions()) == (START, 0, 0, [])
        assert partition.read(START, 1000).frames == []
        assert partition.sync() == START

    def test_what_is_appended_is_read_in_order_and_byte_for_byte(self, log: EventLog) -> None:
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        append_all(partition, [*owner.opening(), owner.put(b"a"), owner.note(), owner.put(b"b" * 5000)])
        assert read_all(partition) == owner.events
        assert read_all(partition, max_bytes=1) == owner.events
        assert read_all(partition, after=owner.events[1][0]) == owner.events[2:]

    def test_a_batch_ends_before_max_bytes_and_has_at_least_one_frame(self, log: EventLog) -> None:
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        append_all(partition, [*owner.opening(), *(owner.put(bytes(1000)) for _ in range(5))])
        first = position(1, 0)
        nbytes = len(owner.events[1][1])
        assert len(partition.read(first, 2 * nbytes).frames) == 2
        assert len(partition.read(first, 2 * nbytes - 1).frames) == 1
        assert len(partition.read(first, 0).frames) == 1
        assert partition.read(owner.at, 1000).end == owner.at

    def test_void_records_are_for_no_reader(self, log: EventLog) -> None:
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        append_all(partition, [*owner.opening(), owner.put()])
        repeat = make_frame(Note(), owner.at, owner.nonce)
        stale = make_frame(Note(), owner.at + 1, owner.nonce + 7)
        gap = make_frame(Note(), owner.at + 2, owner.nonce)
        stale_base = make_frame(Base(epoch=owner.epoch), owner.at - 1, owner.nonce)
        append_all(partition, [repeat, stale, gap, stale_base, owner.put()])
        assert read_all(partition) == owner.events

    def test_sync_returns_the_last_position_that_is_durable(self, log: EventLog) -> None:
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        append_all(partition, [*owner.opening(), owner.put(), owner.put()])
        assert partition.sync() == owner.at
        assert partition.sync() == owner.at

    def test_it_counts_every_byte_that_it_holds(self, log: EventLog) -> None:
        one, two, owner, other = log.open(PARTITION), log.open((7, 3)), Owner(), Owner((7, 3))
        one.recover()
        two.recover()
        frames = [*owner.opening(), owner.put(), owner.base(bytes(70_000))]
        others = [*other.opening(), other.put()]
        append_all(one, frames)
        append_all(two, others)
        assert one.nbytes == sum(map(len, frames))
        assert log.nbytes == sum(map(len, frames + others))
        assert log.partitions() == [(7, 3), PARTITION]
        log.drop_topic(7)
        assert log.nbytes == sum(map(len, frames))
        assert log.partitions() == [PARTITION]

    def test_a_dropped_partition_begins_anew(self, log: EventLog) -> None:
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        append_all(partition, owner.opening())
        log.drop_topic(PARTITION[0])
        again = log.open(PARTITION)
        assert again.recover().last_claim == 0
        append_all(again, Owner().opening())
        assert again.sync() == position(1, 0)

    def test_a_full_segment_wants_a_base_and_a_base_opens_the_next(self, log: EventLog) -> None:
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        assert log.segment_nbytes == LIMIT // 16
        append_all(partition, owner.opening())
        while not partition.wants_base:
            partition.append(owner.put(bytes(10_000)))
        assert partition.nbytes < log.segment_nbytes + 20_000
        partition.append(owner.base())
        assert not partition.wants_base

    def test_it_is_cut_only_before_a_base_and_keeps_all_from_there(self, log: EventLog) -> None:
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        append_all(partition, owner.opening())
        bases: list[int] = []
        for _ in range(4):
            append_all(partition, [owner.put(bytes(500)) for _ in range(5)])
            append_all(partition, [owner.base()])
            bases.append(owner.at)
        append_all(partition, [owner.put()])
        partition.sync()
        before = log.nbytes
        assert partition.cut(bases[1]) == bases[0], "the record at the base's own position lies before it"
        assert log.nbytes < before
        assert partition.cut(bases[1] + 1) == bases[1] == partition.start
        assert partition.cut(0) == bases[1]
        assert read_all(partition) == [pair for pair in owner.events if pair[0] > bases[1]]
        with pytest.raises(LogTruncated):
            partition.read(bases[1] - 1, 1000)
        append_all(partition, [owner.put()])
        assert partition.sync() == owner.at
        assert read_all(partition)[-1] == owner.events[-1]

    def test_a_log_without_a_newer_base_is_not_cut(self, log: EventLog) -> None:
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        append_all(partition, [owner.claim(), owner.open_epoch(), owner.put(), owner.put()])
        partition.sync()
        assert partition.cut(owner.at) == START
        assert read_all(partition) == owner.events

    def test_positions_of_ended_epochs_lead_on_to_the_next_one(self, log: EventLog) -> None:
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        append_all(partition, [*owner.opening(), owner.put()])
        append_all(partition, [*owner.opening(), owner.put()])
        lost = position(1, 77)
        assert read_all(partition, after=lost) == owner.events[2:]

    def test_a_full_offset_opens_the_next_epoch_without_a_claim(self, log: EventLog) -> None:
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        base = make_frame(Base(epoch=1), position(1, MAX_OFFSET - 1), 9)
        last = make_frame(Note(), position(1, MAX_OFFSET), 9)
        over = make_frame(Epoch(previous_end=position(1, MAX_OFFSET)), position(2, 0), 9)
        append_all(partition, [base, last, over, make_frame(Note(), position(2, 1), 9)])
        owner.epoch, owner.nonce = 1, 10
        append_all(partition, [owner.claim(2)])
        assert partition.sync() == position(2, 1), "a claim of the epoch that is open does not count"
        assert [at for at, _ in read_all(partition)] == [position(1, MAX_OFFSET), position(2, 0), position(2, 1)]

    def test_a_frame_that_is_not_whole_is_refused(self, log: EventLog) -> None:
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        frame = owner.claim()
        for bad in (frame[:-1], frame + b"x", b"", bytes(64)):
            with pytest.raises(CorruptLog):
                partition.append(bad)
        assert log.nbytes == 0

    def test_it_gives_an_owner_that_starts_again_the_newest_base_and_what_counts_behind_it(self, log: EventLog) -> None:
        """For a log whose partitions can be recovered again; see `reopen`."""
        partition, owner = log.open(PARTITION), Owner()
        partition.recover()
        append_all(partition, [*owner.opening(), owner.put(), owner.put(), owner.base(b"new"), owner.put()])
        behind = [owner.events[-1]]
        append_all(partition, [owner.claim()])
        partition.sync()
        recovered = self.reopen(log).open(PARTITION).recover()
        assert recovered.base is not None and bytes(recovered.base.bulk) == b"new"
        assert as_pairs(recovered.records) == behind
        assert (recovered.last_claim, recovered.cut) == (owner.epoch, "")

    def reopen(self, log: EventLog) -> EventLog:
        """The log as its next owner finds it."""
        return log
