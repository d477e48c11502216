"""A recommender that learns from its clicks while it serves, and what that is worth when taste moves on.

    python examples/online_recommender.py --plot online_recommender.png     # pip install 'paramstream[torch,rows,examples]'

    visits ─► served: rows and head of this moment ─► clicks ─► two trainers ─┬─► gradients of rows ─► every replica applies them
                                                                              └─► gradients of the head ─► a parameter server

A visit is scored before anybody learns from it, so a loss is that of what was served at that moment. Beside it a copy is scored that was
frozen when the phase began: it is as good at first, but seasons change, and items come that it never saw. What to see:

- the loss served stays low; that of the frozen copy climbs until the next one is taken;
- a look-up in the serving process has gradients milliseconds after a trainer published them, though its memory is too small for the table;
- at the end the serving process, both trainers, and the log played once more from its beginning hold the same bits.

Where one of these does not hold it exits with 1, and says which.
"""

import argparse
import importlib.util
import json
import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

import paramstream as ps

USERS, SHELVES, TASTE, DIM = 200_000, 2_000, 4, 16
VISITS = 256
"""Scored, and learnt from, at a time."""
AHEAD = 8
"""So many batches are served at most before the head that learnt from the first of them is there."""
TRAINERS = ("trainer-0", "trainer-1")
DRAM = "6MiB" if importlib.util.find_spec("numba") else "24MiB"
"""Too little for the table. Its index takes several times as much without numba."""
WAIT_S = 60.0


class World:
    """Who likes what. Users have a lasting taste, items come and go, and each has its seasons. No model is told any of it."""

    def __init__(self, phases: int) -> None:
        self._random = random = np.random.default_rng(7)
        self._ids = random.integers(-(2**63), 2**63 - 1, USERS)  # any int64 is a key
        self._tastes = random.normal(size=(USERS, TASTE))
        # An item is (generation, shelf): the next generation takes its place at a moment that each shelf has of its own.
        self._items = random.normal(size=(phases + 1, SHELVES, TASTE))
        self._appeal, self._season = random.normal(size=(2, phases + 1, SHELVES))
        self._replaced = random.random(SHELVES)

    def visits(self, now: float) -> tuple[NDArray[np.int64], float]:
        """Ids of users and of items, and 1 for a click, as (3, VISITS); and the loss of who knows all. `now`: phases since the start."""
        user, shelf = self._popular(USERS), self._popular(SHELVES)
        generation = np.floor(now / 1.5 + self._replaced[shelf]).astype(np.int64)
        item = generation, shelf
        liked = 0.5 * (self._tastes[user] * self._items[item]).sum(1) + self._appeal[item]
        liked += 2 * np.sin(np.pi * now + 6 * self._season[item])
        clicked = self._random.random(VISITS) < 1 / (1 + np.exp(-liked))
        best = cross_entropy(torch.from_numpy(liked), torch.from_numpy(clicked).double())
        return np.stack([self._ids[user], generation * SHELVES + shelf, clicked]), float(best)

    def _popular(self, count: int) -> NDArray[np.int64]:
        """Numbers below `count`, by Zipf's law."""
        return (self._random.zipf(1.1, VISITS) - 1) % count


class Head(nn.Module):
    """The dense part: rows of users and of items in, logits of a click out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3 * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        product = users * items
        deep: Tensor = self.layers(torch.cat([users, items, product], dim=1))
        return product.sum(1) + deep.squeeze(1)


class Model:
    """What a replica holds, as a model: of this moment where it follows the stream, of another one where it was restored."""

    def __init__(self, replica: ps.Replica) -> None:
        self.replica = replica
        self._head = Head()
        replica.bind(self._head)

    @torch.inference_mode()
    def loss(self, visits: NDArray[np.int64]) -> float:
        users, items, clicked = torch.from_numpy(visits)
        logits = self._head(self.replica.lookup("users", users), self.replica.lookup("items", items))
        return float(cross_entropy(logits, clicked.float()))


def train(endpoint: str, number: int, batches: int) -> tuple[str, list[tuple[float, float]]]:
    """A trainer learns from each batch that is its own. Rows and head live where they are served: it has no optimizer, and saves nothing.

    Returns the digest of its replica, and the freshness: when gradients were published, and after how many seconds a look-up in the
    serving process had them.
    """
    torch.set_num_threads(1)
    name, head = TRAINERS[number], Head()
    with (
        ps.connect(endpoint) as client,
        client.publisher("recommender", name) as rows,
        client.publisher("gradients", name) as dense,
        client.replica("recommender", name) as replica,
        client.subscribe("clicks", start="earliest") as events,
        ThreadPoolExecutor(4) as watching,
    ):
        users = ps.torch.Embedding(replica, rows, "users", staleness=2)
        items = ps.torch.Embedding(replica, rows, "items", staleness=2)
        replica.wait_version(0, WAIT_S)
        bound = replica.bind(head)

        def watch(published: float, began: float, keys: Tensor, receipt: Any) -> tuple[float, float]:
            client.lookup("recommender", "items", keys, at_least=receipt)
            return published, time.monotonic() - began

        watched = list[Future[tuple[float, float]]]()
        for _ in range(batches):
            ((batch, value, _),) = events.next(WAIT_S).items
            if int(batch) % len(TRAINERS) != number:
                continue
            user, item, clicked = torch.tensor(np.frombuffer(value or b"", np.int64)).view(3, VISITS)
            with bound.hold():  # One version of the head, forward and backward.
                loss = cross_entropy(head(users(user), items(item)), clicked.float())
                head.zero_grad()
                published, began = time.time(), time.monotonic()
                loss.backward()  # It publishes the gradients of the rows when it ends.
            gradients = {name: parameter.grad for name, parameter in head.named_parameters()}
            dense.publish_dense_gradients(gradients, step=int(batch) + 1)
            watched.append(watching.submit(watch, published, began, item, items.receipt))
        # In causal order: whoever shows a head shows all that its gradients came with.
        replica.wait_version(batches, WAIT_S)
        return replica.digest(), [each.result() for each in watched]


@dataclass
class Outcome:
    """What a run has shown. Seconds are those since the first visit."""

    at: NDArray[np.float64]
    """When each batch was scored."""
    losses: NDArray[np.float64]
    """(phases, batches, 3): served, frozen, and what is possible. Nothing is frozen in the first phase: NaN."""
    freshness: NDArray[np.float64]
    """(2, gradients): when they were published, and after how many seconds they showed."""
    digests: dict[str, str]
    status: ps.ReplicaStatus
    """Of the serving process."""

    def summary(self) -> dict[str, Any]:
        """In JSON's types. Losses are of the second half of each phase."""
        phases = self.losses[:, self.losses.shape[1] // 2 :].mean(1).tolist()
        return {
            "served": [served for served, _, _ in phases],
            "frozen": [None, *(frozen for _, frozen, _ in phases[1:])],
            "possible": [possible for _, _, possible in phases],
            "freshness": dict(zip(("p50", "p99"), np.quantile(self.freshness[1], [0.5, 0.99]).tolist(), strict=True)),
            "digests": self.digests,
            "rows": {table.table: table.rows for table in self.status.tables},
            "bytes": {tier.tier: tier.held for tier in self.status.tiers},
        }


def serve(phases: int, batches: int, dram: str, folder: str) -> Outcome:
    """Broker, parameter server and the serving replica are here, the trainers are processes of their own."""
    torch.set_num_threads(1)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["paramstream.consumers.torch.modules"])
    world, total = World(phases), phases * batches
    at, losses = np.empty(total), np.full((total, 3), np.nan)
    with (
        ps.Broker() as broker,
        ps.connect(broker.endpoint) as client,
        ps.TieredStore(dram, ssd=f"{folder}/tier:1GiB") as store,
        ProcessPoolExecutor(len(TRAINERS), processes) as pool,
        ExitStack() as copies,
    ):
        for topic in ("clicks", "gradients", "recommender"):
            client.create_topic(topic)
        first = ps.Normal(std=0.05, seed=1)
        client.create_table("recommender", "users", DIM, optimizer=ps.RowwiseAdagrad(lr=0.2), init=first)
        client.create_table("recommender", "items", DIM, optimizer=ps.Adagrad(lr=0.2), init=first)
        server = ps.parameter_server("gradients", "recommender", optimizer=ps.Adam(lr=0.005), initial="first")
        # The first contribution is no gradient, but version 0 of the weights.
        client.publisher("gradients", "first").publish_dense_gradients(Head().state_dict(), step=0)
        with (
            client.run(server, "head", f"{folder}/head"),
            client.replica("recommender", "serving", store=store) as replica,
            client.publisher("clicks", "visits") as visits,
            replica.serve(),
        ):
            trainers = [pool.submit(train, broker.endpoint, number, total) for number in range(len(TRAINERS))]
            replica.wait_version(0, WAIT_S)
            served, frozen = Model(replica), None
            for batch in range(total):
                for trainer in trainers:
                    if trainer.done():
                        trainer.result()  # So soon it has ended with an error.
                replica.wait_version(max(0, batch - AHEAD), WAIT_S)
                if batch and batch % batches == 0:
                    frozen = Model(copies.enter_context(ps.restore(broker.endpoint, "recommender")))
                clicks, possible = world.visits(batch / batches)
                at[batch] = time.time()
                losses[batch] = served.loss(clicks), frozen.loss(clicks) if frozen else np.nan, possible
                visits.put(str(batch), clicks.tobytes())
            trained = [trainer.result(WAIT_S) for trainer in trainers]
            replica.wait_version(total, WAIT_S)
            digests = {"serving": replica.digest()} | dict(
                zip(TRAINERS, (digest for digest, _ in trained), strict=True)
            )
            status = replica.status()
        with ps.restore(broker.endpoint, "recommender", at=total) as again:
            digests["log"] = again.digest()
    freshness = np.array([sample for _, samples in trained for sample in samples]).T
    freshness[0] -= at[0]
    return Outcome(at - at[0], losses.reshape(phases, batches, 3), freshness, digests, status)


def problems(summary: dict[str, Any], fresh_within: float) -> list[str]:
    """What was to be shown and was not."""
    served, frozen, p99 = summary["served"][-1], summary["frozen"][-1], summary["freshness"]["p99"]
    claims = {
        f"the loss served, {served:.3f}, is not below the frozen copy's, {frozen:.3f}": served < frozen,
        f"1 % of the gradients took longer than {fresh_within:g} s to show: {p99:.3f} s": p99 <= fresh_within,
        f"the digests differ: {summary['digests']}": len(set(summary["digests"].values())) == 1,
        "all rows fitted into memory: give it less with --dram": summary["bytes"]["ssd"] > 0,
    }
    return [problem for problem, holds in claims.items() if not holds]


def plot(outcome: Outcome, path: str) -> None:
    """Loss and freshness over time: means and quantiles of sixty stretches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    at, losses, (published, took) = outcome.at, outcome.losses.reshape(-1, 3), outcome.freshness
    edges = [(float(at[-1]) + 1e-3) * step / 60 for step in range(61)]
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    scored = [losses[(low <= at) & (at < high)] for low, high in pairwise(edges)]
    shown = [took[(low <= published) & (published < high)] * 1e3 for low, high in pairwise(edges)]
    for column, (label, style) in enumerate(
        (("served", "C0"), ("frozen as the phase began", "C3"), ("possible", "0.7"))
    ):
        means = [each[:, column].mean() if len(each) else np.nan for each in scored]
        above.plot(middles, means, style, label=label)
    for share, style in ((50, "C0"), (99, "C1")):
        quantiles = [np.percentile(each, share) if len(each) else np.nan for each in shown]
        below.plot(middles, quantiles, style, label=f"p{share}")
    above.set_ylabel("loss")
    below.set(yscale="log", ylabel="ms from publish to look-up", xlabel="s")
    for axes in (above, below):
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)
        for begins in at[:: outcome.losses.shape[1]].tolist():
            axes.axvline(begins, color="0.85", zorder=0)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", type=int, default=5, help="2 or more; a frozen copy is taken at each but the first")
    parser.add_argument("--batches", type=int, default=300, help="in a phase (default %(default)s)")
    parser.add_argument("--dram", default=DRAM, help="memory of the serving process's rows (default %(default)s)")
    parser.add_argument(
        "--fresh-within", type=float, default=1.0, metavar="S", help="99 %% of gradients (default %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--plot", metavar="FILE.png", help="draw loss and freshness over time")
    arguments = parser.parse_args()
    if arguments.phases < 2:
        parser.error("--phases: there is no frozen copy in fewer than 2")
    if arguments.plot:
        try:
            importlib.import_module("matplotlib.figure")
        except ImportError as error:
            parser.error(f"--plot needs matplotlib ({error}): pip install 'paramstream[torch,examples]'")
    with tempfile.TemporaryDirectory() as folder:
        outcome = serve(arguments.phases, arguments.batches, arguments.dram, folder)
    summary = outcome.summary()
    if arguments.plot:
        plot(outcome, arguments.plot)
    if arguments.json:
        print(json.dumps(summary, indent=2))
    else:
        for number, (served, frozen) in enumerate(zip(summary["served"], summary["frozen"], strict=True)):
            print(f"phase {number}: loss served {served:.3f}" + (f", frozen {frozen:.3f}" if frozen else ""))
        print("gradients showed after", ", ".join(f"{s * 1e3:.1f} ms ({p})" for p, s in summary["freshness"].items()))
        print(
            "rows", summary["rows"], ", ".join(f"{n / 2**20:.1f} MiB in {tier}" for tier, n in summary["bytes"].items())
        )
        print("digests", summary["digests"])
    sys.exit("\n".join(problems(summary, arguments.fresh_within)) or None)


if __name__ == "__main__":
    main()
