"""The demo's broker process: `python -m paramstream.cli.demo.broker --log URL`."""

from __future__ import annotations

import argparse

from ...brokers.broker import Broker
from ..standing import favour_small_events
from .child import Parent
from .messages import Finish, Listening


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    arguments = parser.parse_args()
    favour_small_events()
    parent = Parent()
    with Broker(bind="tcp://127.0.0.1:0", log=arguments.log) as broker:
        parent.tell(Listening(broker.endpoint))
        while not isinstance(parent.order(), Finish):
            pass


if __name__ == "__main__":
    main()
