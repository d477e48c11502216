"""Rows at a replica over a link without a network: what events make of them, what is read, and what goes again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch

import paramstream as ps
from feeding.fakes import FakeBroker
from feeding.rows import delete_rows, write_gradients, write_rows
from paramstream.consumers.live_state import LiveState
from paramstream.consumers.replica import Replica
from paramstream.events.digest import partition_of
from paramstream.events.kinds import Rows, Table
from paramstream.events.tables import AnyInit, AnyOptimizer, definition_of
from reference.row_table import RowTableModel

DIM = 3


def table_of(
    optimizer: AnyOptimizer | None = None, dtype: str = "float32", init: AnyInit = 0.0, name: str = "t"
) -> Table:
    return definition_of(name, DIM, dtype, optimizer, init)


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


def follow(broker: FakeBroker, **options: Any) -> Replica:
    options.setdefault("arrays", "numpy")
    broker.follows.clear()
    return Replica(["model"], directory=broker.directory, make_link=broker.make_link, timeout=2.0, **options)


@pytest.fixture
def replica(broker: FakeBroker) -> Iterator[Replica]:
    with follow(broker) as replica:
        yield replica


def settle(broker: FakeBroker) -> None:
    """All that is written is durable, and arrives."""
    broker.durable = {partition: writer.position for partition, writer in broker.writers.items()}
    broker.beat()


def define(broker: FakeBroker, table: Table) -> None:
    for number in range(broker.topic.partitions):
        broker.writers[broker.topic.id, number].write(table)
    settle(broker)


def found_in(replica: Replica, keys: Sequence[int], table: str = "t") -> tuple[list[list[float]], list[bool]]:
    values, found = replica.lookup(table, keys, return_found=True)
    return values.tolist(), found.tolist()


def ones(count: int, value: float = 1.0) -> npt.NDArray[np.float32]:
    return np.full((count, DIM), value, np.float32)


def test_rows_are_read_in_the_order_asked_and_unknown_keys_have_their_initial_value_E04(
    broker: FakeBroker, replica: Replica
) -> None:
    define(broker, table_of())
    write_rows(broker.state, table_of(), [7], ones(1, 5.0))
    settle(broker)
    assert found_in(replica, [7, 999, 7]) == ([[5.0] * DIM, [0.0] * DIM, [5.0] * DIM], [True, False, True])
    # The read has not made it.
    assert replica.table("t").rows == 1
    assert replica.lookup("t", []).shape == (0, DIM)
    with pytest.raises(ps.UnknownTopic, match="no such table"):
        replica.lookup("u", [1])
    with pytest.raises(ps.InvalidEvent, match="int64"):
        replica.lookup("t", np.zeros(2, np.int32))


def test_rows_come_back_as_the_replicas_arrays(broker: FakeBroker) -> None:
    with follow(broker, arrays="torch") as replica:
        define(broker, table_of(dtype="bfloat16", init=1.5))
        write_rows(broker.state, table_of(dtype="bfloat16"), [3], ones(1, 2.5))
        settle(broker)
        values, found = replica.lookup("t", torch.tensor([3, 4]), return_found=True)
        assert (values.dtype, values.tolist()) == (torch.bfloat16, [[2.5] * DIM, [1.5] * DIM])
        assert (found.dtype, found.tolist()) == (torch.bool, [True, False])


@pytest.mark.parametrize("key", [0, -1, 2**63 - 1, -(2**63)])
def test_any_int64_is_a_key(broker: FakeBroker, replica: Replica, key: int) -> None:
    define(broker, table_of(ps.SGD(1.0)))
    write_rows(broker.state, table_of(), [key], ones(1, 5.0))
    write_gradients(broker.state, table_of(), [key], ones(1))
    settle(broker)
    assert found_in(replica, [key]) == ([[4.0] * DIM], [True])
    delete_rows(broker.state, table_of(), [key])
    settle(broker)
    assert found_in(replica, [key])[1] == [False]


def test_the_last_row_of_a_repeated_key_wins(broker: FakeBroker, replica: Replica) -> None:
    define(broker, table_of())
    rows = np.arange(4 * DIM, dtype=np.float32).reshape(4, DIM)
    write_rows(broker.state, table_of(), [1, 2, 1, 2], rows)
    settle(broker)
    assert found_in(replica, [1, 2])[0] == rows[2:].tolist()


@pytest.mark.parametrize("optimizer", [ps.SGD(1.0), ps.Adagrad(1.0)], ids=["sgd", "adagrad"])
def test_gradients_of_one_key_are_one_step_with_the_same_bits_each_time_E01(optimizer: AnyOptimizer) -> None:
    keys, grads = [1, 1, 3, 1], np.array([[1, 1], [2, 2], [5, 5], [4, 4]], np.float32)
    table = replace_dim(table_of(optimizer), 2)
    seen: set[tuple[str, bytes]] = set()
    state: list[list[float]] = []
    for _ in range(100):
        broker = FakeBroker()
        broker.state.write(table)
        write_gradients(broker.state, table, keys, grads)
        broker.durable = {broker.state.partition: broker.state.position}
        with follow(broker) as replica:
            seen.add((replica.digest(), replica.lookup("t", [1, 3]).tobytes()))
            state = store_of(replica).row_tables(broker.state.partition)["t"].read(np.array([1, 3])).state.tolist()
    ((_, values),) = seen
    if isinstance(optimizer, ps.SGD):
        assert np.frombuffer(values, np.float32).tolist() == [-7, -7, -5, -5]
    else:
        # As of one gradient of 7 and one of 5.
        assert state == [[49, 49], [25, 25]]


def replace_dim(table: Table, dim: int) -> Table:
    return msgspec.structs.replace(table, dim=dim)


def store_of(replica: Replica) -> ps.TieredStore:
    return live_state_of(replica).store


def live_state_of(replica: Replica) -> LiveState:
    live = vars(replica)["_live"]
    assert isinstance(live, LiveState)
    return live


OPTIMIZERS: list[AnyOptimizer] = [
    ps.SGD(0.5),
    ps.Adagrad(0.5, initial_accumulator_value=0.25),
    ps.RowwiseAdagrad(0.5),
    ps.Adam(0.1),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_a_table_is_as_the_reference_says_and_a_replay_gives_the_same_bits(
    broker: FakeBroker, optimizer: AnyOptimizer, dtype: str
) -> None:
    table = table_of(optimizer, dtype, init=0.5)
    model = RowTableModel(table)
    with follow(broker) as replica:
        define(broker, table)
        play(broker, table, model, np.random.default_rng(3), 60)
        settle(broker)
        check(replica, model, exact=isinstance(optimizer, ps.SGD | ps.Adagrad))
        digest = replica.digest()
    with follow(broker) as replica:
        assert replica.digest() == digest


def play(broker: FakeBroker, table: Table, model: RowTableModel, chance: np.random.Generator, events: int) -> None:
    """So many events of rows, gradients and deletions of a few keys, in the log and in the model."""
    writer = broker.state
    for _ in range(events):
        keys = chance.integers(0, 12, chance.integers(1, 8)).tolist()
        values = chance.normal(size=(len(keys), DIM)).astype(model.dtype)
        match int(chance.integers(4)):
            case 0:
                write_rows(writer, table, keys, values)
                model.write(keys, values, writer.position)
            case 1:
                up_to = int(chance.integers(writer.position - 5, writer.position)) if chance.random() < 0.5 else None
                delete_rows(writer, table, keys, up_to)
                model.delete(keys, writer.position, up_to)
            case _:
                write_gradients(writer, table, keys, values)
                model.apply(keys, values, writer.position)


def check(replica: Replica, model: RowTableModel, *, exact: bool) -> None:
    keys = list(range(14))
    values, found = replica.lookup("t", keys, return_found=True)
    expected, there = model.lookup(keys)
    assert found.tolist() == there
    if exact:
        assert values.tobytes() == expected.tobytes()
    else:
        size = {"float32": 1e-5, "float64": 1e-12}.get(model.definition.dtype, 4e-2)
        np.testing.assert_allclose(values.astype(np.float64), expected.astype(np.float64), size, size)


# --- what may still be lost ----------------------------------------------------------------------------------------------------


def test_what_was_lost_of_rows_and_entries_is_taken_back_bit_for_bit(broker: FakeBroker) -> None:
    table, chance = table_of(ps.Adam(0.1)), np.random.default_rng(5)
    model = RowTableModel(table)
    with follow(broker) as replica:
        define(broker, table)
        play(broker, table, model, chance, 30)
        broker.state.put(b"k", b"1")
        settle(broker)
        kept, digest = broker.state.position, replica.digest()
        for value in range(20):
            play(broker, table, model, chance, 1)
            broker.state.put(b"k", bytes([value]))
        broker.settle()
        assert replica.digest() != digest and store_of(replica).usage().staging_bytes > 0
        broker.state.open_epoch(end=kept)
        broker.settle()
        assert (replica.digest(), replica.get("k")) == (digest, b"1")
        assert store_of(replica).usage().staging_bytes == 0
        # What was lost does not keep its successors away.
        write_rows(broker.state, table, [1], ones(1, 9.0))
        settle(broker)
        assert found_in(replica, [1]) == ([[9.0] * DIM], [True])


def test_rows_that_are_durable_leave_no_image(broker: FakeBroker, replica: Replica) -> None:
    define(broker, table_of(ps.SGD(1.0)))
    broker.durable[broker.state.partition] = broker.state.position + 1000
    broker.beat()
    write_rows(broker.state, table_of(), range(2000), ones(2000))
    broker.settle()
    store = store_of(replica)
    # There is no room for any.
    store.charge_staging(room := store.usage().available_bytes)
    write_gradients(broker.state, table_of(), range(2000), ones(2000, 3.0))
    broker.settle()
    assert found_in(replica, [1]) == ([[-2.0] * DIM], [True])
    store.refund_staging(room)
    assert store.usage().staging_bytes == 0


def test_a_table_is_there_once_it_is_durable_and_what_follows_waits_for_it(
    broker: FakeBroker, replica: Replica
) -> None:
    broker.state.write(table_of())
    write_rows(broker.state, table_of(), [1], ones(1))
    broker.settle()
    with pytest.raises(ps.UnknownTopic):
        replica.lookup("t", [1])
    settle(broker)
    assert found_in(replica, [1])[1] == [True]


def test_a_table_that_was_lost_was_never_there(broker: FakeBroker, replica: Replica) -> None:
    kept = broker.state.position
    broker.state.write(table_of())
    broker.settle()
    broker.state.open_epoch(end=kept)
    settle(broker)
    assert replica.status().tables == ()
    define(broker, table_of(dtype="float64"))
    assert replica.table("t").dtype == "float64"


def test_an_alter_is_applied_at_its_place(broker: FakeBroker) -> None:
    first = table_of(ps.SGD(1.0))
    second, third = table_of(ps.SGD(0.25)), table_of(ps.Adagrad(1.0))
    model = RowTableModel(first)
    chance = np.random.default_rng(11)
    with follow(broker) as replica:
        define(broker, first)
        for table in (second, third, first, third):
            play(broker, table, model, chance, 10)
            broker.state.write(table)
            model.alter(table)
            play(broker, table, model, chance, 10)
        settle(broker)
        check(replica, model, exact=True)
        digest = replica.digest()
    with follow(broker) as replica:
        assert replica.digest() == digest


def test_without_a_log_rows_end_with_their_epoch_and_tables_stay() -> None:
    broker = FakeBroker(persistence="none")
    with follow(broker) as replica:
        define(broker, table_of(ps.SGD(1.0)))
        write_gradients(broker.state, table_of(), [1], ones(1))
        settle(broker)
        assert found_in(replica, [1])[1] == [True]
        assert store_of(replica).usage().staging_bytes == 0
        broker.state.open_epoch(end=0)
        broker.state.write(table_of(ps.SGD(0.5)))
        write_gradients(broker.state, table_of(), [1], ones(1))
        settle(broker)
        assert found_in(replica, [1]) == ([[-0.5] * DIM], [True])


def test_200_gradients_count_once_over_20_kills_with_the_bits_of_a_run_without_I03(
    broker: FakeBroker, tmp_path: Path
) -> None:
    table, chance = table_of(ps.SGD(0.3)), np.random.default_rng(2)
    model, killed = RowTableModel(table), list[Replica]()
    kept: dict[str, Any] = {"name": "r", "start": "resume", "snapshot_dir": tmp_path}
    replica = follow(broker, **kept)
    define(broker, table)
    kills = set(chance.choice(200, 20, replace=False).tolist())
    try:
        for number in range(200):
            keys = chance.integers(0, 4, 3).tolist()
            grads = chance.normal(size=(3, DIM)).astype(np.float32)
            write_gradients(broker.state, table, keys, grads)
            model.apply(keys, grads, broker.state.position)
            # Of what is applied, some is durable, and some of that is kept.
            broker.settle()
            if chance.random() < 0.3:
                settle(broker)
            if chance.random() < 0.1:
                settle(broker)
                replica.snapshot()
            if number in kills:
                killed.append(replica)  # Nothing of it is closed: what is not in a snapshot is gone.
                settle(broker)
                replica = follow(broker, **kept)
        settle(broker)
        check(replica, model, exact=True)
        digest = replica.digest()
    finally:
        for each in (replica, *killed):
            each.close()
    with follow(broker) as replica:
        assert replica.digest() == digest


# --- partitions, topics, digests -----------------------------------------------------------------------------------------------


def test_rows_of_several_partitions_are_gathered_in_order_and_what_is_not_followed_is_named() -> None:
    broker = FakeBroker(partitions=3)
    keys = list(range(-20, 20))
    at = {key: partition_of(key.to_bytes(8, "little", signed=True), 3) for key in keys}
    with follow(broker) as replica:
        define(broker, table_of())
        for number in range(3):
            own = [key for key in keys if at[key] == number]
            write_rows(broker.writers[77, number], table_of(), own, np.repeat(np.array(own)[:, None], DIM, 1))
        settle(broker)
        values, found = replica.lookup("t", keys, return_found=True)
        assert values[:, 0].tolist() == keys and found.all()
        table = replica.table("t")
        assert (table.topic, table.table, table.dim, table.dtype, table.rows) == ("model", "t", DIM, "float32", 40)
        assert replica.status().tables == (table,) and table.nbytes > 40 * DIM * 4
    with follow(broker, partitions=[1]) as replica:
        own = [key for key in keys if at[key] == 1]
        assert replica.lookup("t", own)[:, 0].tolist() == own
        other = next(key for key in keys if at[key] == 2)
        with pytest.raises(ps.InvalidEvent, match="does not follow") as elsewhere:
            replica.lookup("t", [*own, other])
        assert (elsewhere.value.partition, elsewhere.value.item) == (2, f"t/{other}")


def test_a_partition_that_lacks_the_definition_yet_has_no_rows() -> None:
    broker = FakeBroker(partitions=2)
    with follow(broker) as replica:
        broker.writers[77, 1].write(table_of(init=2.0))
        settle(broker)
        assert found_in(replica, list(range(10))) == ([[2.0] * DIM] * 10, [False] * 10)


def test_tables_go_with_their_topic(broker: FakeBroker, replica: Replica) -> None:
    define(broker, table_of())
    write_rows(broker.state, table_of(), [1], ones(1))
    settle(broker)
    held = store_of(replica).usage().held
    broker.disconnect()
    broker.replace_topic()
    broker.connect()
    settle(broker)
    with pytest.raises(ps.UnknownTopic):
        replica.lookup("t", [1])
    assert replica.status().tables == () and store_of(replica).usage().held < held
    assert live_state_of(replica).applier.tables((77, 0)) == {}


def test_a_digest_is_over_rows_state_and_shape_and_not_over_how_they_came_there(broker: FakeBroker) -> None:
    def digest(*events: tuple[str, list[int], float], table: Table) -> str:
        broker = FakeBroker()
        broker.state.write(table)
        for kind, keys, value in events:
            (write_rows if kind == "rows" else write_gradients)(broker.state, table, keys, ones(len(keys), value))
        broker.durable = {broker.state.partition: broker.state.position}
        with follow(broker) as replica:
            return replica.digest()

    plain, adagrad = table_of(ps.SGD(1.0)), table_of(ps.Adagrad(1.0))
    first = digest(("rows", [1, 2], 3.0), table=plain)
    assert first == digest(("rows", [2], 3.0), ("rows", [1], 4.0), ("gradients", [1], 1.0), table=plain)
    others = [
        digest(table=plain),
        digest(table=replace_dim(plain, 4)),
        digest(table=table_of(dtype="float64")),
        digest(table=table_of(name="u")),
        digest(("rows", [1], 3.0), table=plain),
        digest(("rows", [1, 3], 3.0), table=plain),
        digest(("rows", [1, 2], 2.0), table=plain),
        digest(("gradients", [1], -2.0), table=adagrad),
        digest(("gradients", [1], -1.0), table=adagrad),
    ]
    assert len({first, *others}) == 10


# --- what goes wrong -------------------------------------------------------------------------------------------------------------


def test_rows_that_have_no_room_for_what_they_replace_wait_until_they_are_durable(broker: FakeBroker) -> None:
    table = table_of(ps.SGD(1.0))
    with ps.TieredStore(dram="1MiB") as store, follow(broker, store=store) as replica:
        define(broker, table)
        write_rows(broker.state, table, range(2000), 5.0)
        settle(broker)
        store.charge_staging(store.usage().available_bytes - 2000 * (2 * 8 + 4 * DIM) - 100)
        for value in (6.0, 7.0, 8.0):
            write_rows(broker.state, table, range(2000), value)
            broker.settle()
        # The first of them has its image, and takes the room.
        assert (replica.vector["model", 0], replica.status().stopped) == (broker.state.position - 2, {})
        assert found_in(replica, [1]) == ([[6.0] * DIM], [True])
        settle(broker)
        assert found_in(replica, [1]) == ([[8.0] * DIM], [True])
        for value in (9.0, 10.0):
            write_rows(broker.state, table, range(2000), value)
            broker.settle()
        broker.state.open_epoch(end=broker.state.position - 2)
        broker.settle()
        assert found_in(replica, [1]) == ([[8.0] * DIM], [True])


def test_rows_without_room_stop_their_partition_and_go_on_when_there_is_some(broker: FakeBroker) -> None:
    store = ps.TieredStore(dram="1MiB")
    with follow(broker, store=store) as replica:
        define(broker, table_of())
        store.charge_staging(ballast := store.usage().available_bytes - 1000)
        write_rows(broker.state, table_of(), list(range(5000)), ones(5000))
        settle(broker)
        assert isinstance(replica.status().stopped["model", 0], ps.StorageFull)
        assert found_in(replica, [1, 4999])[1] == [False, False]
        store.refund_staging(ballast)
        broker.beat(now=100.0)
        broker.beat(now=200.0)
        assert replica.status().stopped == {} and found_in(replica, [1, 4999])[1] == [True, True]
    store.close()


@pytest.mark.parametrize(
    "table",
    [table_of(name="unknown"), replace_dim(table_of(), 4), table_of(dtype="float64")],
    ids=["no such table", "another dim", "another dtype"],
)
def test_rows_that_do_not_fit_a_definition_stop_their_partition(
    broker: FakeBroker, replica: Replica, table: Table
) -> None:
    define(broker, table_of())
    write_rows(broker.state, table, [1], 1.0)
    settle(broker)
    stopped = replica.status().stopped["model", 0]
    assert isinstance(stopped, ps.CorruptLog) and stopped.item == table.table
    assert stopped.position == broker.state.position


@pytest.mark.parametrize("wrong", ["gradients without an optimizer", "another dim of the table"])
def test_what_brokers_refuse_and_a_log_has_all_the_same_stops_its_partition(
    broker: FakeBroker, replica: Replica, wrong: str
) -> None:
    define(broker, table_of())
    if wrong == "another dim of the table":
        broker.state.write(replace_dim(table_of(), 4))
    else:
        write_gradients(broker.state, table_of(), [1], ones(1))
    settle(broker)
    assert isinstance(replica.status().stopped["model", 0], ps.CorruptLog)


def test_an_event_without_keys_changes_nothing(broker: FakeBroker, replica: Replica) -> None:
    define(broker, table_of(ps.SGD(1.0)))
    before = replica.digest()
    broker.state.write(Rows("t", 0, DIM, "float32"))
    write_gradients(broker.state, table_of(), [], ones(0))
    delete_rows(broker.state, table_of(), [])
    settle(broker)
    assert replica.digest() == before
    assert replica.vector["model", 0] == broker.state.position
