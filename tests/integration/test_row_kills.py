"""Tables larger than memory: every row is what the log says, whatever is killed while it is trained and read.

pytest tests/integration/test_row_kills.py                                    a few kills
pytest tests/integration/test_row_kills.py -m slow                            ten minutes: 4 million rows of 64 floats
pytest tests/integration/test_row_kills.py -m slow --rounds 600 --seed 9      as many seconds as you like
"""

from __future__ import annotations

import faulthandler
from pathlib import Path

import pytest

from processes.learning import Size, run_learning

SMALL = Size(rows=40_000, dim=16, keys=200, pause_s=0.02, dram=4 << 20, ssd=64 << 20, log=1 << 30, keep_s=0.5)
LARGE = Size(rows=4_000_000, dim=64, keys=1024, pause_s=0.2, dram=256 << 20, ssd=8 << 30, log=16 << 30, keep_s=45.0)
"""The rows alone are 1 GiB, four times what memory there is, and Adagrad's sums as much again."""


def test_every_row_is_what_the_log_says_after_a_few_kills(tmp_path: Path, seed: int) -> None:
    run_learning(tmp_path, SMALL, seed, kills=3, pause_s=0.3)


@pytest.mark.slow
def test_every_row_of_four_million_is_what_the_log_says_after_ten_minutes_of_kills(
    tmp_path: Path, seed: int, rounds: int | None
) -> None:
    # Each wait in here is bounded and there are many: the time that one test may take is not for this one.
    faulthandler.cancel_dump_traceback_later()
    run_learning(tmp_path, LARGE, seed, seconds=600 if rounds is None else rounds, pause_s=8.0)
