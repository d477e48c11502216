"""What a changelog may hold is decoded by its types and nothing else."""

from pathlib import Path

import pytest

from paramstream.consistency.vector import EMPTY
from paramstream.consumers.changelog.records import entry_record, marker, marker_record, read_record
from paramstream.errors import CorruptLog
from paramstream.eventlog.changelog import ChangelogRecord
from paramstream.tiers.entries import Entry

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
