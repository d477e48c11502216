"""The demo's trainer process: it learns to read digits, and publishes its weights after every step."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from ...client import connect
from ...producers.publisher import Publisher
from . import digits
from .child import Pace, Parent
from .messages import Begin, Finish, Finished, Published, Ready, Scored

STEPS_PER_SECOND = 30.0
BATCH = 32
LEARNING_RATE = 0.05
"""So that accuracy rises over some hundred steps, where one can watch it."""
SCORED_EVERY = 10
ENDED_WITHIN_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connect", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--history")
    arguments = parser.parse_args()
    digits.be_modest()
    parent = Parent()
    with connect(arguments.connect, history=arguments.history) as client:
        Training(client.publisher(arguments.topic, producer="trainer"), parent).run()


class Training:
    """One training run: version 0 is the untrained network, then each step is a version."""

    def __init__(self, publisher: Publisher, parent: Parent) -> None:
        self._publisher = publisher
        self._parent = parent
        self._training, self._held_out = digits.load()
        self._network = digits.make_network(seed=1)
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=LEARNING_RATE, momentum=0.9)
        self._batches = torch.Generator().manual_seed(2)
        self._version = 0

    def run(self) -> None:
        self._publish()
        self._parent.tell(Ready(self._version))
        while not isinstance(self._parent.order(), Begin):
            pass
        pace = Pace(STEPS_PER_SECOND)
        while not isinstance(self._parent.order(pace.left_s()), Finish):
            if not pace.is_due():
                continue
            self._step()
            if self._version % SCORED_EVERY == 0:
                self._parent.tell(Scored(self._version, digits.accuracy(self._network, self._held_out)))
        self._step()
        self._publisher.flush(ENDED_WITHIN_S)
        accuracy = digits.accuracy(self._network, self._held_out)
        self._parent.tell(Finished(self._version, accuracy, digits.digest_of(self._network)))

    def _step(self) -> None:
        chosen = torch.randint(len(self._training.labels), (BATCH,), generator=self._batches)
        guesses: torch.Tensor = self._network(self._training.pictures[chosen])
        loss = nn.functional.cross_entropy(guesses, self._training.labels[chosen])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._version += 1
        self._publish()

    def _publish(self) -> None:
        began_ns = time.monotonic_ns()
        self._publisher.publish_weights(self._network, version=self._version)
        self._parent.tell(Published(self._version, began_ns))


if __name__ == "__main__":
    main()
