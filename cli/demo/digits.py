"""What the demo learns: a small network reads the handwritten digits that scikit-learn carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from sklearn.datasets import load_digits
from torch import nn

from ...events.arrays import describe, row_major
from ...events.digest import tensor_digest, version_digest
from ...events.kinds import TensorSpec

HELD_OUT = 400
"""Of the 1,797 pictures, those that no training step sees."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Pictures, float32 (n, 64) from 0 to 1, and what they show, int64 (n,)."""

    pictures: torch.Tensor
    labels: torch.Tensor


def load() -> tuple[Digits, Digits]:
    """(training, held out): the same split in every process."""
    # scikit-learn has no types.
    found = cast("Any", load_digits())
    pictures = torch.from_numpy(found.data).float() / 16
    labels = torch.from_numpy(found.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out, training = order[:HELD_OUT], order[HELD_OUT:]
    return Digits(pictures[training], labels[training]), Digits(pictures[held_out], labels[held_out])


def make_network(seed: int) -> nn.Module:
    """An untrained network: 64 → 128 → 64 → 10, 17,226 parameters in float32."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )  # fmt: skip


def accuracy(network: nn.Module, digits: Digits) -> float:
    """The share of `digits` that the network reads rightly, by one forward."""
    with torch.no_grad():
        guesses: torch.Tensor = network(digits.pictures).argmax(dim=1)
    return float((guesses == digits.labels).float().mean())


def digest_of(network: nn.Module) -> str:
    """The digest of the network's own bytes, in the form in which a version's is told."""
    specs: list[TensorSpec] = []
    for name, tensor in network.state_dict().items():
        dtype, shape = describe(name, tensor)
        data = row_major(name, tensor)
        specs.append(TensorSpec(name, dtype, shape, tensor_digest(data), len(data)))
    return version_digest(specs).hex()


def be_modest() -> None:
    """One core for torch: several processes share the machine with its user."""
    torch.set_num_threads(1)
