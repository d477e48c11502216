"""What of a log must stay."""

from cores.partitions import Session, Weights, put, start
from paramstream.brokers.partition import PartitionCore
from paramstream.brokers.retention import LEASE_S, Lease, LogUse
from paramstream.brokers.state import PartitionState
from paramstream.errors import EventLost
from paramstream.events.kinds import DenseGradients, GradientPiece

OPENED_NS = 10**12
LATER_NS = OPENED_NS + int(LEASE_S * 1e9)
ROOMY, HALF_FULL, NEARLY_FULL = LogUse(10, 100), LogUse(51, 100), LogUse(76, 100)


def published(versions: int, retain: int = 2) -> PartitionCore:
    core = start(role="weights", retain_versions=retain)
    session = Session(core)
    session.join()
    for version in range(1, versions + 1):
        Weights(session).publish(version, {"w": bytes([version]) * 8})
    core.synced(core.sequenced)
    return core


def first(core: PartitionCore, version: int) -> int:
    return core.state.dense.sealed[version - 1].first


def test_the_newest_versions_are_kept_and_what_is_older_may_go() -> None:
    core = published(5)
    assert core.trim_floor([], ROOMY, LATER_NS) == first(core, 4)


def test_fewer_versions_than_are_retained_all_stay() -> None:
    core = published(1)
    assert core.trim_floor([], ROOMY, LATER_NS) == first(core, 1)


def test_nothing_goes_for_a_minute_after_an_epoch_opens_unless_the_log_is_over_half_full() -> None:
    core = published(5)
    assert core.trim_floor([], ROOMY, LATER_NS - 1) == 0
    assert core.trim_floor([], HALF_FULL, LATER_NS - 1) == first(core, 4)


def test_versions_above_the_durable_head_do_not_displace_durable_ones() -> None:
    core = published(3)
    session = Session(core, "other", 2)
    session.join()
    for version in (4, 5):
        Weights(session).publish(version, {"w": bytes([version]) * 8})
    assert core.trim_floor([], ROOMY, LATER_NS) == first(core, 2)
    core.synced(core.sequenced)
    assert core.trim_floor([], ROOMY, LATER_NS) == first(core, 4)


def test_a_lease_holds_what_a_replica_needs_until_its_report_is_a_minute_old() -> None:
    core = published(5)
    needed = first(core, 2)
    assert core.trim_floor([Lease("r", needed - 1, 1.0)], ROOMY, LATER_NS) == needed
    assert core.trim_floor([Lease("r", needed - 1, LEASE_S)], ROOMY, LATER_NS) == first(core, 4)


def test_a_need_of_every_version_gives_way_past_half_but_the_served_one_is_held() -> None:
    core = published(5)
    serves = core.state.dense.sealed[2].position
    lease = Lease("r", first(core, 1) - 1, 1.0, (serves,))
    assert core.trim_floor([lease], ROOMY, LATER_NS) == first(core, 1)
    assert core.trim_floor([lease], HALF_FULL, LATER_NS) == first(core, 3)


def test_no_lease_lets_the_log_run_full() -> None:
    core = published(5)
    served, fetched = (core.state.dense.sealed[index].position for index in (0, 1))
    lease = Lease("r", first(core, 1) - 1, 1.0, (served, fetched))
    assert core.trim_floor([lease], HALF_FULL, LATER_NS) == first(core, 1)
    assert core.trim_floor([lease], LogUse(76, 100), LATER_NS) == first(core, 4)


def test_what_is_still_being_published_stays() -> None:
    core = start(role="weights", retain_versions=1)
    session = Session(core)
    session.join()
    Weights(session).stage(9, {"w": bytes(8)})
    staged = core.sequenced - 1
    for version in (1, 2, 3):
        Weights(session).publish(version, {"w": bytes([version]) * 8})
    core.synced(core.sequenced)
    assert core.trim_floor([], ROOMY, LATER_NS) == staged


def test_what_nobody_commits_holds_the_log_only_while_it_is_under_half_full() -> None:
    core = start(role="weights", retain_versions=1)
    session = Session(core)
    session.join()
    weights = Weights(session)
    specs, ref = weights.stage(9, {"w": bytes(8)})  # of a rank that is gone
    for version in (1, 2, 3):
        weights.publish(version, {"w": bytes([version]) * 8})
    core.synced(core.sequenced)
    floor = core.trim_floor([], HALF_FULL, LATER_NS)
    assert floor == first(core, 3)
    core.trimmed(floor - 1)
    assert core.state.dense.open_from() is None
    assert isinstance(session.refusal(weights.commit(9, [ref], specs)), EventLost)


def test_rows_and_kv_keep_all() -> None:
    core = start()
    session = Session(core)
    session.join()
    session.write(*put())
    assert core.trim_floor([], HALF_FULL, LATER_NS) == 0


def test_the_registrys_base_holds_all_that_its_log_said() -> None:
    core = start(role="meta", partition=(0, 0))
    assert core.trim_floor([], ROOMY, LATER_NS) == core.sequenced


def state_of(events: int) -> PartitionCore:
    core = start()
    session = Session(core)
    session.join()
    for _ in range(events):
        session.write(*put())
    core.synced(core.sequenced)
    return core


def test_rows_and_kv_go_behind_what_snapshots_hold() -> None:
    core = state_of(9)
    held = core.sequenced - 4
    assert core.trim_floor([], ROOMY, LATER_NS, held) == held + 1
    assert core.trim_floor([], ROOMY, LATER_NS - 1, held) == 0
    assert core.trim_floor([], HALF_FULL, LATER_NS - 1, held) == held + 1


def inputs_of(before: int, events: int, after: int) -> tuple[PartitionCore, int]:
    """A partition with puts before and behind events that are for processors; and the position of the first of those."""
    core = start()
    session = Session(core)
    session.join()
    for _ in range(before):
        session.write(*put())
    first = core.sequenced + 1
    piece = GradientPiece("w", "float32", (2,), bytes(16), 0, 8)
    for _ in range(events):
        session.write(DenseGradients(1, 0, 1, (piece,)), [bytes(8)])
    for _ in range(after):
        session.write(*put())
    core.synced(core.sequenced)
    return core, first


def reader(position: int, age_s: float = 1.0) -> Lease:
    return Lease("processor p/0", position - 1, age_s, taken=position)


def test_inputs_stay_however_full_the_log_is_until_a_processor_has_them_and_then_go_without_a_snapshot_of_a_keeper() -> (
    None
):
    core, first = inputs_of(0, 9, 0)
    for use, kept in ((ROOMY, 1), (NEARLY_FULL, 0)):  # For the snapshot before the newest, while there is room.
        assert core.trim_floor([], use, LATER_NS) == 0
        assert core.trim_floor([Lease("r", first + 5, 1.0), reader(first + 5, LEASE_S)], use, LATER_NS) == 0
        assert core.trim_floor([reader(first + 5)], use, LATER_NS) == first + 6 - kept
        assert core.trim_floor([reader(first + 5), reader(first + 2)], use, LATER_NS) == first + 3 - kept
        assert core.trim_floor([reader(first + 9)], use, LATER_NS) == core.sequenced
    assert core.trim_floor([reader(first + 5), Lease("r", first + 1, 1.0)], ROOMY, LATER_NS) == first + 2
    assert core.trim_floor([reader(first + 5), Lease("r", first + 1, 1.0)], NEARLY_FULL, LATER_NS) == first + 6


def test_inputs_that_have_left_the_log_need_no_processor_any_more() -> None:
    core, first = inputs_of(0, 9, 0)
    core.trimmed(first + 8)
    assert core.trim_floor([], ROOMY, LATER_NS) == core.sequenced


def test_entries_beside_inputs_stay_until_a_snapshot_of_a_keeper_has_them() -> None:
    core, first = inputs_of(0, 5, 3)
    assert core.describe(0, LATER_NS).passive == first + 4
    assert core.trim_floor([reader(first + 7)], NEARLY_FULL, LATER_NS) == first + 5
    assert core.trim_floor([reader(first + 7)], NEARLY_FULL, LATER_NS, first + 6) == first + 7
    assert core.trim_floor([reader(first + 3)], NEARLY_FULL, LATER_NS, first + 6) == first + 4
    behind, first = inputs_of(1, 5, 0)
    assert behind.trim_floor([reader(behind.sequenced)], NEARLY_FULL, LATER_NS) == first - 1


def test_what_replicas_hold_is_empty_up_to_the_first_event_that_changes_it_also_after_a_restart() -> None:
    core, first = inputs_of(0, 2, 1)
    again = PartitionState.decode(core.state.encode(), core.sequenced)
    assert (again.passive, again.inputs) == (first + 1, first + 1)
    record = core.describe(first + 1, LATER_NS)
    assert not record.is_trimmed
    assert core.describe(first + 2, LATER_NS).is_trimmed


def test_a_replica_holds_the_rows_and_kv_that_it_has_not_applied_until_the_log_is_nearly_full() -> None:
    core = state_of(9)
    held, applied = core.sequenced - 2, core.sequenced - 6
    lease = Lease("r", applied, 1.0)
    assert core.trim_floor([lease], HALF_FULL, LATER_NS, held) == applied + 1
    assert core.trim_floor([Lease("r", applied, LEASE_S)], HALF_FULL, LATER_NS, held) == held + 1
    assert core.trim_floor([lease], LogUse(76, 100), LATER_NS, held) == held + 1
