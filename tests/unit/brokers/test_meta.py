"""The registry: calls become entries to write and answers to give."""

import pytest

from cores.partitions import CLOCK_S, Log, Machine, start
from paramstream.brokers.meta import Entry, MetaState
from paramstream.brokers.partition import PartitionCore
from paramstream.errors import InvalidEvent, TopicExists, UnknownTopic
from paramstream.events.kinds import Optimizer, Table
from paramstream.transport.calls import CreateTable, CreateTopic, TopicRecord

META = (0, 0)
TABLE = Table("users", 8, "float32")


def registry(log: Log | None = None, machine: Machine | None = None) -> PartitionCore:
    return start(log, role="meta", partition=META, machine=machine)


def write(core: PartitionCore, entry: Entry | None, log: Log | None = None) -> None:
    assert entry is not None
    effects = core.write(entry.payload, entry.bulk, 10**12)
    if log is not None:
        log.do(effects)


def topic(name: str = "models", partitions: int = 2, exist_ok: bool = False, retain: int = 8) -> CreateTopic:
    return CreateTopic(name, partitions, "write_back", retain, exist_ok)


def test_a_topic_is_created_under_its_random_id_and_found_by_both() -> None:
    core = registry()
    entry, record = core.meta.create_topic(topic(), topic_id=99)
    assert record == TopicRecord("models", 99, 2, "write_back", 8)
    assert core.meta.topics() == []
    write(core, entry)
    assert core.meta.topics() == [record] and core.meta.topic("models") == record
    assert core.meta.topic_by_id(99) == record and core.meta.topic_by_id(98) is None


def test_the_registry_stands_after_a_restart() -> None:
    log = Log()
    core = registry(log)
    write(core, core.meta.create_topic(topic(), 99)[0], log)
    write(core, core.meta.open_producer("trainer-0")[0], log)
    write(core, core.meta.open_producer("trainer-0")[0], log)
    again = registry(log).meta
    assert again.topics() == core.meta.topics()
    assert again.producer_incarnation("trainer-0") == core.epoch + 2


def test_a_topic_that_exists_is_answered_only_where_that_is_fine_and_settings_are_the_same() -> None:
    core = registry()
    write(core, core.meta.create_topic(topic(), 99)[0])
    assert core.meta.create_topic(topic(exist_ok=True), 5) == (None, core.meta.topic("models"))
    with pytest.raises(TopicExists):
        core.meta.create_topic(topic(), 5)
    with pytest.raises(TopicExists, match=r"partitions=2.*partitions=3"):
        core.meta.create_topic(topic(partitions=3, exist_ok=True), 5)


@pytest.mark.parametrize(
    "call",
    [
        topic(""),
        topic("x" * 513),
        topic("__meta"),
        topic(partitions=0),
        topic(partitions=2000),
        topic(retain=0),
        CreateTopic("models", 1, "sometimes", 8, False),
    ],
)
def test_impossible_topics_are_refused_B03(call: CreateTopic) -> None:
    with pytest.raises(InvalidEvent):
        registry().meta.create_topic(call, 99)


def test_a_deleted_topic_takes_its_tables_along_and_its_name_gets_another_id() -> None:
    core = registry()
    write(core, core.meta.create_topic(topic(), 99)[0])
    write(core, core.meta.create_table(CreateTable(99, TABLE, False)))
    entry, record = core.meta.delete_topic("models")
    assert record.id == 99
    write(core, entry)
    assert core.meta.tables(99) == [] and core.state.entries == {}
    with pytest.raises(UnknownTopic, match="models"):
        core.meta.delete_topic("models")
    write(core, core.meta.create_topic(topic(), 100)[0])
    assert core.meta.topic("models").id == 100


def test_incarnations_are_unique_over_all_names() -> None:
    core = registry()
    first = core.epoch + 1
    for number, name in enumerate(("a", "b", "a"), start=first):
        entry, incarnation = core.meta.open_producer(name)
        assert incarnation == number
        write(core, entry)
    entry, incarnation = core.meta.open_replica("a")
    write(core, entry)
    assert (incarnation, core.meta.replica_incarnation("a"), core.meta.producer_incarnation("a")) == (
        first + 3,
        first + 3,
        first + 2,
    )
    assert core.meta.producer_incarnation("nobody") == 0
    with pytest.raises(InvalidEvent):
        core.meta.open_producer("")


def test_a_broker_that_came_back_without_its_log_gives_no_incarnation_twice() -> None:
    before = registry()
    write(before, before.meta.open_producer("a")[0])
    after = registry(machine=Machine(clock_s=CLOCK_S + 1.0))
    assert after.meta.open_producer("a")[1] > before.meta.producer_incarnation("a")


def test_a_table_is_created_once_and_altered_by_asking() -> None:
    core = registry()
    write(core, core.meta.create_topic(topic(), 99)[0])
    write(core, core.meta.create_table(CreateTable(99, TABLE, False)))
    assert core.meta.tables(99) == [TABLE]
    assert core.meta.create_table(CreateTable(99, TABLE, True)) is None
    with pytest.raises(TopicExists):
        core.meta.create_table(CreateTable(99, TABLE, False))
    with pytest.raises(TopicExists):
        core.meta.create_table(CreateTable(99, Table("users", 9, "float32"), True))
    altered = Table("users", 8, "float32", Optimizer("sgd", {"lr": 0.1}))
    write(core, core.meta.create_table(CreateTable(99, altered, False, alter=True)))
    assert core.meta.tables(99) == [altered]
    with pytest.raises(InvalidEvent):
        core.meta.create_table(CreateTable(99, Table("users", 8, "float64"), False, alter=True))
    with pytest.raises(UnknownTopic):
        core.meta.create_table(CreateTable(99, Table("items", 8, "float64"), False, alter=True))
    with pytest.raises(UnknownTopic):
        core.meta.create_table(CreateTable(98, TABLE, False))
    with pytest.raises(InvalidEvent):
        core.meta.create_table(CreateTable(99, Table("none", 0, "float32"), False))


def test_producer_names_that_no_partition_knows_are_forgotten() -> None:
    core = registry()
    for name in ("kept", "gone"):
        write(core, core.meta.open_producer(name)[0])
    write(core, core.meta.forget_names({"kept"}, set()))
    assert core.meta.producer_incarnation("gone") == 0 and core.meta.producer_incarnation("kept") == core.epoch + 1
    assert core.meta.forget_names({"kept"}, set()) is None


def test_the_view_needs_nothing_but_the_entries() -> None:
    assert MetaState({}).topics() == []
