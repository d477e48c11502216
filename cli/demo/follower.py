"""The demo's replica process: a network that follows the trainer, and says how well it reads and how late it is."""

from __future__ import annotations

import argparse
import contextlib
import time

from ...client import connect
from ...consumers.bound import Bound
from ...consumers.replica import Replica
from ...errors import ParamstreamTimeout
from . import digits
from .child import Pace, Parent
from .messages import Finish, Finished, Ready, Scored, Shown

SCORED_PER_SECOND = 5.0
LOOK_S = 0.0002
"""Far below the time that a version takes from the trainer."""
SWITCH_WITHIN_S = 10.0
START_WITHIN_S = 60.0
END_WITHIN_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connect", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--history")
    arguments = parser.parse_args()
    digits.be_modest()
    parent = Parent()
    with (
        connect(arguments.connect, history=arguments.history) as client,
        client.replica(arguments.topic, name=arguments.name, arrays="torch", timeout=START_WITHIN_S) as replica,
    ):
        follow(replica, parent)


def follow(replica: Replica, parent: Parent) -> None:
    """Until the order to finish, which names the version to end with."""
    replica.wait_version(0, START_WITHIN_S)
    _, held_out = digits.load()
    # Another seed than the trainer's: whatever this network can, it has from the stream.
    network = digits.make_network(seed=99)
    bound = replica.bind(network)
    version = reached(bound, 0)
    parent.tell(Ready(version))
    pace = Pace(SCORED_PER_SECOND)
    order = None
    while not isinstance(order, Finish):
        with contextlib.suppress(ParamstreamTimeout):
            replica.wait_version(version + 1, pace.left_s())
            version = reached(bound, version + 1)
            parent.tell(Shown(version, time.monotonic_ns()))
        if pace.is_due():
            parent.tell(Scored(version, digits.accuracy(network, held_out)))
        order = parent.order(0)
    replica.wait_version(order.version, END_WITHIN_S)
    version = reached(bound, order.version)
    parent.tell(Finished(version, digits.accuracy(network, held_out), digits.digest_of(network), replica.digest()))


def reached(bound: Bound, version: int) -> int:
    """The version that the network has, once it is `version` or later: it switches just after the replica does.

    Raises the error of a network that cannot take what is served, or `ParamstreamTimeout`.
    """
    deadline = time.monotonic() + SWITCH_WITHIN_S
    while (found := bound.version) is None or found < version:
        if bound.error is not None:
            raise bound.error
        if time.monotonic() > deadline:
            raise ParamstreamTimeout(f"the network did not switch within {SWITCH_WITHIN_S:g} s", version=version)
        time.sleep(LOOK_S)
    return found


if __name__ == "__main__":
    main()
