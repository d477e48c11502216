"""What a changelog may hold is decoded by its types and nothing else."""

from pathlib import Path

import numpy as np
import pytest

from fakes.changelogs import FakeChangelogs, Stored
from paramstream.consistency.vector import EMPTY
from paramstream.consumers.changelog.core import ChangelogCore, Held
from paramstream.consumers.changelog.records import (
    Marker,
    RowsOf,
    entry_record,
    marker,
    marker_record,
    read_record,
    row_records,
    table_record,
)
from paramstream.consumers.changelog.seeding import seed_of
from paramstream.consumers.definitions import Defined
from paramstream.errors import CorruptLog
from paramstream.eventlog.changelog import ChangelogRecord
from paramstream.events.kinds import Table
from paramstream.tiers.entries import Entry
from paramstream.tiers.rows.batch import RowBatch
from paramstream.transport.calls import TopicRecord

ENTRY = entry_record(b"key", Entry(b"value", 7, None, None))


def test_a_pickle_in_the_place_of_a_changelogs_record_is_refused_and_never_run_O01(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    evil = b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR."
    for record in (
        ChangelogRecord(evil, evil),
        ChangelogRecord(ENTRY.key, evil),
        ChangelogRecord(marker_record(marker(1, 2, EMPTY)).key, evil),
    ):
        with pytest.raises(CorruptLog, match="model-0"):
            read_record(record, "model-0")
    assert not canary.exists()


@pytest.mark.parametrize("at", range(3))
def test_a_record_that_is_cut_short_is_refused_with_its_place(at: int) -> None:
    assert ENTRY.value is not None
    with pytest.raises(CorruptLog, match="model-0"):
        read_record(ChangelogRecord(ENTRY.key, ENTRY.value[:at]), "model-0")


def test_a_changelog_whose_writer_passed_over_tables_is_begun_anew_and_never_restored_from() -> None:
    old = Marker(3, 9, b"", lacking=2, format=1)
    changelogs = FakeChangelogs()
    changelogs.stored[7, 0] = Stored([ENTRY, marker_record(old)])
    assert seed_of(changelogs, TopicRecord("model", 7, 1, "write_back", 8), [0]).state == []
    held = Held()
    for record in changelogs.stored[7, 0].records:
        held.take(read_record(record, "here"))
    core = ChangelogCore(held)
    # Nothing may leave the log behind it, and nothing older than what it has is written.
    assert (core.floor, core.may_flush(8), core.may_flush(9)) == (0, False, True)


def test_rows_above_the_marker_or_definitions_above_the_floor_are_named_as_damage() -> None:
    record, changelogs = TopicRecord("model", 7, 1, "write_back", 8), FakeChangelogs()
    table = Table("users", 2, "float32")
    defined, rows = Defined(table, 4, 4), RowsOf("users", 4)
    batch = RowBatch(
        np.array([1]), np.ones((1, 2), np.float32), np.empty((1, 0), np.float32), "", np.array([8], np.uint64)
    )
    for floor, ceiling in ((5, 7), (3, 9)):
        changelogs.stored[7, 0] = Stored(
            [*row_records(rows, batch), table_record(defined), marker_record(marker(floor, ceiling, EMPTY))]
        )
        with pytest.raises(CorruptLog, match="users"):
            seed_of(changelogs, record, [0])
    changelogs.stored[7, 0] = Stored(
        [*row_records(rows, batch), table_record(defined), marker_record(marker(5, 9, EMPTY))]
    )
    (state,) = seed_of(changelogs, record, [0]).state
    ((name, found),) = state.rows()
    assert (name, found.keys.tolist(), found.values.tolist()) == ("users", [1], [[1.0, 1.0]])
