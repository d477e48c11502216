"""Every log passes the one suite."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.shared_log import FakeSharedLog, FakeSharedPartition, SharedStore
from paramstream.consistency.vector import PartitionId
from paramstream.eventlog.kafka.log import KafkaEventLog
from paramstream.eventlog.kafka.partition import KafkaPartition
from paramstream.eventlog.kafka.settings import KafkaLog
from paramstream.eventlog.local import LocalLog
from paramstream.eventlog.log import EventLog
from paramstream.eventlog.memory import MemoryLog
from records.suite import LIMIT, LogSuite


class TestMemoryLog(LogSuite):
    @pytest.fixture
    def log(self) -> Iterator[EventLog]:
        log = MemoryLog(LIMIT)
        yield log
        log.close()

    def test_it_is_durable_at_once(self, log: EventLog) -> None:
        assert log.durable_on_append
        assert (log.boot, log.failed_writes, log.limit) == ("", 0, LIMIT)


class TestLocalLog(LogSuite):
    @pytest.fixture
    def log(self, tmp_path: Path) -> Iterator[EventLog]:
        self.folder = tmp_path / "log"
        self.opened = [LocalLog(self.folder, LIMIT)]
        yield self.opened[0]
        for log in self.opened:
            log.close()

    def reopen(self, log: EventLog) -> EventLog:
        log.close()
        self.opened.append(LocalLog(self.folder, LIMIT))
        return self.opened[-1]

    def test_it_names_the_present_boot(self, log: EventLog) -> None:
        assert not log.durable_on_append
        assert log.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert (log.failed_writes, log.limit) == (0, LIMIT)


class SelfMakingLog(KafkaEventLog):
    """Makes the Kafka topic of a partition that is opened, as a broker does before."""

    def open(self, partition: PartitionId) -> KafkaPartition:
        self.create_topic(partition[0], "suite", partition[1] + 1)
        return super().open(partition)


class TestKafkaLog(LogSuite):
    @pytest.fixture
    def log(self, kafka: KafkaLog) -> Iterator[EventLog]:
        self.settings = kafka
        self.opened = [SelfMakingLog(kafka, LIMIT)]
        yield self.opened[0]
        for log in self.opened:
            log.close()

    def reopen(self, log: EventLog) -> EventLog:
        log.close()
        self.opened.append(SelfMakingLog(self.settings, LIMIT))
        return self.opened[-1]

    def test_it_is_shared_and_durable_once_it_is_acknowledged(self, log: EventLog) -> None:
        assert log.shared and not log.durable_on_append
        assert (log.boot, log.failed_writes, log.limit) == ("", 0, LIMIT)


class SelfMakingFake(FakeSharedLog):
    def open(self, partition: PartitionId) -> FakeSharedPartition:
        self.create_topic(partition[0], "suite", partition[1] + 1)
        return super().open(partition)


class TestFakeSharedLog(LogSuite):
    """What the tests of several brokers rest on."""

    @pytest.fixture
    def log(self) -> Iterator[EventLog]:
        log = SelfMakingFake(SharedStore(), "one", LIMIT)
        yield log
        log.close()
