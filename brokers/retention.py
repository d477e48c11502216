"""What of a partition's log must stay: the versions that are retained, what is still being published, and leases.

Rows and KV keep all until announced snapshots of this broker's keeper hold their state. Inputs of processors, which change no replica's
state, keep all until the processors that report have them in snapshots of theirs. A lease is what a replica's or processor's report says
that it still needs; it lasts for 60 s after the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .checks import Role
from .dense import DenseState

LEASE_S = 60.0
"""How long a report holds what it names; and how long after an epoch's opening nothing goes, so that reports can come."""


@dataclass(frozen=True, slots=True)
class LogUse:
    """Bytes that the log holds, of all partitions, and its hard limit."""

    nbytes: int
    limit: int

    @property
    def is_half_full(self) -> bool:
        return self.nbytes > self.limit // 2

    @property
    def is_nearly_full(self) -> bool:
        """Soon publishers would be refused."""
        return self.nbytes > self.limit // 4 * 3


@dataclass(frozen=True, slots=True)
class Lease:
    """A replica's need of one partition, reported `age_s` ago.

    `commits`: the positions of the commits that it serves and fetches. Those versions are held as long as the lease lasts and
    the log is not nearly full: a log is cut at its front only, so that one replica which stands still would stop all publishers.
    What lies after `position`, where every later version is wanted, is held only while the log is under half of its limit; of rows
    and KV while it is not nearly full.
    """

    name: str
    position: int | None
    age_s: float
    commits: tuple[int, ...] = ()
    taken: int | None = None
    """Of a processor, which has everything up to there for good: what lies after it is its input, which nothing else has."""


def lowest_needed(
    role: Role, dense: DenseState, head: int, durable: int, retained: int, leases: Iterable[Lease],
    use: LogUse, opened_s_ago: float, copied: int = 0, *, has_inputs: bool = False,
) -> int:  # fmt: skip
    """The lowest position that must stay: the log may be cut below it. 0 where all must stay.

    `copied`: up to there, snapshots hold the state of rows and KV, or there is none. `has_inputs`: the log still has events that are
    for processors only.
    """
    if opened_s_ago < LEASE_S and not use.is_half_full:
        return 0
    if role == "state":
        return _needed_of_state(head, list(leases), use, copied, has_inputs)
    if role == "meta":
        return head
    needed = [head]
    # Versions above the durable head may be lost yet, and must not displace the newest durable ones.
    settled = sum(1 for sealed in dense.sealed if sealed.position <= durable)
    needed += [sealed.first for sealed in dense.sealed[max(0, settled - retained) :]]
    # A part that nobody will ever commit (its rank is gone) must not fill the log: past half it ends with the log's start.
    if (staged := dense.open_from()) is not None and not use.is_half_full:
        needed.append(staged)
    firsts = {sealed.position: sealed.first for sealed in dense.sealed}
    for lease in leases:
        if lease.age_s >= LEASE_S:
            continue
        if not use.is_nearly_full:
            needed += [firsts[commit] for commit in lease.commits if commit in firsts]
        if lease.position is not None and not use.is_half_full:
            needed.append(lease.position + 1)
    return min(needed)


def _needed_of_state(head: int, leases: Sequence[Lease], use: LogUse, copied: int, has_inputs: bool) -> int:
    if not copied:
        return 0
    held = [lease for lease in leases if lease.age_s < LEASE_S]
    taken = [lease.taken for lease in held if lease.taken is not None]
    if has_inputs and not taken:
        # Whoever is to take them is away, or still to come: its publishers wait for it at the log's limit.
        return 0
    needed = [head, copied + 1]
    if has_inputs:
        needed.append(min(taken) + 1)
    if not use.is_nearly_full:
        # Past that a replica begins again with the snapshot: one that stands still must not stop all publishers.
        needed += [lease.position + 1 for lease in held if lease.position is not None]
    return min(needed)
