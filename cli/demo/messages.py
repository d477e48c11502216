"""What the processes of the demo say to each other: reports of children, orders of the parent, one JSON object a line.

Times are nanoseconds of the machine's monotonic clock, which all processes of one host share.
"""

from __future__ import annotations

import msgspec


class Listening(msgspec.Struct, frozen=True, tag=True):
    """The broker stands."""

    endpoint: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The trainer has published the untrained weights, or a replica has bound its network and serves `version`."""

    version: int


class Published(msgspec.Struct, frozen=True, tag=True):
    """The trainer began to publish `version` at `at_ns`."""

    version: int
    at_ns: int


class Shown(msgspec.Struct, frozen=True, tag=True):
    """A replica's network switched to `version` at `at_ns`."""

    version: int
    at_ns: int


class Scored(msgspec.Struct, frozen=True, tag=True):
    """The share of held-out digits that the network of `version` reads rightly, 0 to 1."""

    version: int
    accuracy: float


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The last word of a trainer or replica."""

    version: int
    accuracy: float
    digest: str
    """Over the bytes of the network itself, computed by the child from its own memory."""
    state_digest: str = ""
    """A replica's digest over all that it holds."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """To the trainer: train from here on."""


class Finish(msgspec.Struct, frozen=True, tag=True):
    """To the trainer: publish a last version. To a replica: reach `version`. Then say what you hold, and end."""

    version: int = 0


Report = Listening | Ready | Published | Shown | Scored | Finished
Order = Begin | Finish

decode_report = msgspec.json.Decoder[Report](Report).decode
decode_order = msgspec.json.Decoder[Order](Order).decode
encode = msgspec.json.Encoder().encode
