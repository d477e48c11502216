"""`ps.torch` over a real broker: a model whose embeddings live in the stream learns what one of torch alone learns, and so do replicas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import paramstream as ps

DIM = 8
IDS = torch.tensor([-1, 2**63 - 1, 0, 7, 10**12, 99, -(2**40), 5])
STEPS = 6


class Model(torch.nn.Module):
    """Two tables and a head; only the first lines differ from a model of torch alone."""

    def __init__(self, users: torch.nn.Module, tags: torch.nn.Module) -> None:
        super().__init__()
        self.users = users
        self.tags = tags
        self.head = torch.nn.Linear(2 * DIM, 1)

    def forward(self, users: torch.Tensor, tags: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.users(users), self.tags(tags, offsets)], dim=1)
        scores: torch.Tensor = self.head(both)
        return scores.squeeze(1)


def descend(module: torch.nn.Module, squares: torch.Tensor | None = None) -> None:
    """One step of SGD, or with `squares` of Adagrad, as torch.optim makes it (whose first step takes seconds to import)."""
    with torch.no_grad():
        for each in module.parameters():
            assert each.grad is not None
            step = each.grad if squares is None else each.grad / (squares.add_(each.grad**2).sqrt() + 1e-10)
            each.sub_(0.1 * step)
            each.grad = None


@pytest.mark.parametrize("hbm", [None, "32KiB"])
def test_a_model_over_the_stream_learns_what_one_of_torch_learns(client: ps.Client, hbm: str | None) -> None:
    client.create_topic("model", partitions=3)
    client.create_table("model", "users", DIM, optimizer=ps.Adagrad(lr=0.1), init=ps.Normal(std=0.5, seed=1))
    client.create_table("model", "tags", DIM, optimizer=ps.SGD(lr=0.1), init=ps.Uniform(-0.5, 0.5, seed=2))
    torch.manual_seed(3)
    chosen = torch.Generator().manual_seed(4)
    with (
        ps.TieredStore("64MiB", hbm=hbm) as store,
        client.publisher("model", producer="trainer-0") as pub,
        client.replica("model", store=store) as rep,
        client.replica("model") as other,
    ):
        in_stream = ps.torch.Embedding(rep, pub, "users"), ps.torch.EmbeddingBag(rep, pub, "tags", mode="mean")
        ours = Model(*in_stream)
        theirs = Model(torch.nn.Embedding(len(IDS), DIM), torch.nn.EmbeddingBag(len(IDS), DIM, mode="mean"))
        theirs.head.load_state_dict(ours.head.state_dict())
        for name in ("users", "tags"):
            getattr(theirs, name).weight.data.copy_(rep.lookup(name, IDS))
        squares = torch.zeros(len(IDS), DIM)
        for _ in range(STEPS):
            users = torch.randint(0, len(IDS), (4,), generator=chosen)
            tags, offsets = torch.randint(0, len(IDS), (9,), generator=chosen), torch.tensor([0, 2, 2, 6])
            loss = ours(IDS[users], IDS[tags], offsets).pow(2).mean()
            expected = theirs(users, tags, offsets).pow(2).mean()
            torch.testing.assert_close(loss, expected)
            loss.backward()
            expected.backward()
            descend(ours.head)
            descend(theirs.head)
            descend(theirs.tags)
            descend(theirs.users, squares)
        for each in in_stream:
            each.wait()
        receipt = pub.publish_rows("users", np.array([3]), np.zeros((1, DIM), np.float32))
        other.wait(receipt)
        rep.wait(receipt)
        for name in ("users", "tags"):
            torch.testing.assert_close(rep.lookup(name, IDS), getattr(theirs, name).weight.data, atol=1e-5, rtol=1e-5)
        assert rep.digest() == other.digest()
        if store.hbm is not None:
            assert torch.equal(rep.lookup("users", IDS, device="cpu"), other.lookup("users", IDS))


def test_a_gradient_that_is_not_finite_is_refused_in_backward_with_the_keys_named(client: ps.Client) -> None:
    client.create_topic("model")
    client.create_table("model", "users", DIM, optimizer=ps.SGD(lr=0.1))
    with client.publisher("model", producer="trainer-0") as pub, client.replica("model") as rep:
        users = ps.torch.Embedding(rep, pub, "users")
        with pytest.raises(ps.InvalidEvent, match="7"):
            (users(torch.tensor([7])) * float("nan")).sum().backward()
        assert not rep.lookup("users", [7]).any()
