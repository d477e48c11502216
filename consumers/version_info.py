"""A sealed version as users are told of it: by `client.versions`, and by `replica.on_switch`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..transport.calls import VersionRecord
from .times import moment_of
from .versions import Sealed


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A sealed version of a topic's weights."""

    version: int
    position: int
    """Of its commit, in the topic's weight partition."""
    time: datetime
    """When the commit was sequenced."""
    tensors: int
    bytes: int
    digest: str
    restorable: bool
    """Of `client.versions`: the log still has all of it. Of `replica.on_switch`: it was durable when it was switched to."""
    superseded: bool = False
    """Of `client.versions`: a rewind took its number away. It is reached by a vector that holds its commit, not by the number."""

    @classmethod
    def of_record(cls, record: VersionRecord) -> VersionInfo:
        """What the topic's owner says."""
        return cls(
            version=record.version,
            position=record.position,
            time=moment_of(record.time),
            tensors=record.tensors,
            bytes=record.nbytes,
            digest=record.digest.hex(),
            restorable=record.restorable,
            superseded=record.superseded,
        )

    @classmethod
    def of_sealed(cls, sealed: Sealed, durable: bool) -> VersionInfo:
        """What a replica holds."""
        return cls(
            version=sealed.version,
            position=sealed.position,
            time=moment_of(sealed.time),
            tensors=len(sealed.specs),
            bytes=sum(spec.nbytes for spec in sealed.specs.values() if not spec.tied_to),
            digest=sealed.digest,
            restorable=durable,
        )
