"""What the processes of the command line log, to standard error."""

from __future__ import annotations

import logging
import os
import sys

LIBRARIES = ("aiokafka", "kafka")
"""They say at ERROR, many times a second, whatever an outage of Kafka makes fail. What it means for us, our own loggers say once."""


def set_up_logs() -> None:
    """Logs at the level that `PARAMSTREAM_LOG` names; without it, warnings. Those of `LIBRARIES` only at debug. For processes of our
    own, never in a user's.
    """
    name = os.environ.get("PARAMSTREAM_LOG")
    level = logging.getLevelNamesMapping().get(name.upper()) if name else None
    if level is None or level > logging.DEBUG:
        for library in LIBRARIES:
            logging.getLogger(library).setLevel(logging.CRITICAL)
    if level is not None:
        logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    elif name:
        print(f"paramstream: PARAMSTREAM_LOG={name!r} is no level; try debug, info or warning", file=sys.stderr)
