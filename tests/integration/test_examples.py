"""Each example runs by itself, as a user would run it, and says nothing on standard error."""

import subprocess
import sys
from pathlib import Path

import pytest

from house.checkout import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TIMEOUT_S = 100


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout


def test_the_examples_are_there() -> None:
    assert {"publish_gradients", "subscribe_replica", "replay_checkpoint"} <= {path.stem for path in EXAMPLES}
