"""All acts, by name. Those of one idea stand in one file `acts_*.py`, as a list that is named here."""

from __future__ import annotations

from . import acts_brokers, acts_calls, acts_disk, acts_network, acts_replicas, acts_rows, acts_sessions, acts_shared
from .act import Act

ACTS: dict[str, Act] = {
    act.name: act
    for act in [
        *acts_calls.ACTS,
        *acts_brokers.ACTS,
        *acts_network.ACTS,
        *acts_replicas.ACTS,
        *acts_sessions.ACTS,
        *acts_disk.ACTS,
        *acts_shared.ACTS,
        *acts_rows.ACTS,
    ]
}
