"""What a commit needs before it seals a version, and what it then leaves behind."""

from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from cores.partitions import Log, Session, Weights, acked, refused, spec, start
from paramstream.brokers.effects import Effect
from paramstream.brokers.partition import PartitionCore
from paramstream.brokers.state import PartitionState
from paramstream.consistency.position import position
from paramstream.errors import EventLost, InvalidEvent, ParamstreamError, SchemaMismatch, VersionConflict
from paramstream.events.digest import tensor_digest, version_digest
from paramstream.events.kinds import Chunk, Commit, Note, Part, PartRef, Segment, TensorSpec
from paramstream.transport.calls import PrepareCommit

W, B = b"\1\0\0\0" * 4, b"\2\0\0\0"


def weights_over(core: PartitionCore | None = None, name: str = "trainer-0", incarnation: int = 1) -> Weights:
    session = Session(core or start(role="weights"), name, incarnation)
    session.join()
    return Weights(session)


def error_of(effects: Sequence[Effect]) -> ParamstreamError:
    return refused(effects).error.raised()


def sealed(weights: Weights) -> list[tuple[int, int]]:
    return [(each.version, each.position) for each in weights.session.join().sealed]


def test_a_commit_seals_the_union_of_its_parts_and_sets_the_schema() -> None:
    weights = weights_over()
    core = weights.session.core
    assert acked(weights.publish(1, {"w": W, "b": B})) == [(4, core.sequenced)]
    joined = weights.session.join()
    assert [(each.name, each.dtype, each.shape) for each in joined.schema or ()] == [
        ("b", "float32", (1,)),
        ("w", "float32", (4,)),
    ]
    (record,) = core.versions()
    assert (record.version, record.position, record.tensors, record.nbytes) == (1, core.sequenced, 2, 20)
    assert record.restorable and record.digest == version_digest([spec("w", W, 1), spec("b", B, 2)])
    (kept,) = core.state.dense.sealed
    epoch = core.epoch
    assert kept.parts == (position(epoch, 3),)
    assert kept.chunks == ((position(epoch, 1), position(epoch, 1)), (position(epoch, 2), position(epoch, 2)))
    assert kept.first == position(epoch, 1)


def test_parts_of_several_producers_are_sealed_together() -> None:
    core = start(role="weights")
    one, two = weights_over(core, "rank-0", 1), weights_over(core, "rank-1", 2)
    specs_one, ref_one = one.stage(1, {"w": W})
    specs_two, ref_two = two.stage(1, {"b": B})
    effects = one.session.send(one.session.frame(one.commit(1, [ref_one, ref_two], specs_one + specs_two)))
    assert acked(effects)
    assert core.versions()[0].tensors == 2


def test_a_commit_that_names_a_lost_part_is_refused_naming_part_and_producer() -> None:
    weights = weights_over()
    specs, ref = weights.stage(1, {"w": W})
    lost = PartRef("rank-7", 3, 12)
    error = error_of(weights.session.send(weights.session.frame(weights.commit(1, [ref, lost], specs))))
    assert isinstance(error, EventLost) and error.item == "rank-7/3/12" and "rank-7" in error.problem
    assert weights.session.core.versions() == []


def test_a_commit_whose_part_lacks_a_chunk_is_refused_naming_the_tensor() -> None:
    weights = weights_over()
    session = weights.session
    session.write(Chunk(1, (Segment("w", 0, 8),)), [W[:8]])
    session.sequence += 1  # a chunk that was lost: its sequence is never given again
    tensor = TensorSpec("w", "float32", (4,), tensor_digest(W), 16, 1, 2)
    sequence = session.write(Part(1, (tensor,)))
    commit = weights.commit(1, [PartRef("trainer-0", 1, sequence)], [tensor])
    error = error_of(session.send(session.frame(commit)))
    assert isinstance(error, EventLost) and "'w'" in error.problem and "trainer-0" in error.problem


def test_a_chunk_of_another_version_does_not_count() -> None:
    weights = weights_over()
    session = weights.session
    chunk = session.write(Chunk(2, (Segment("w", 0, 16),)), [W])
    tensor = spec("w", W, chunk)
    sequence = session.write(Part(1, (tensor,)))
    commit = weights.commit(1, [PartRef("trainer-0", 1, sequence)], [tensor])
    assert isinstance(error_of(session.send(session.frame(commit))), EventLost)


def test_a_part_of_another_version_is_refused_naming_it_and_both_versions() -> None:
    weights = weights_over()
    specs, ref = weights.stage(1, {"w": W})
    error = weights.session.refusal(weights.commit(2, [ref], specs))
    assert isinstance(error, InvalidEvent) and error.item == "trainer-0/1/2"
    assert "part 2 of producer 'trainer-0'" in error.problem and "version 1, not 2" in error.problem


def test_parts_that_both_have_a_tensor_are_refused_naming_it_and_them_whatever_its_values() -> None:
    core = start(role="weights")
    one, two = weights_over(core, "rank-0", 1), weights_over(core, "rank-1", 2)
    specs, ref_one = one.stage(1, {"w": W})
    _, ref_two = two.stage(1, {"w": W, "b": B})
    error = error_of(one.session.send(one.session.frame(one.commit(1, [ref_one, ref_two], specs))))
    assert isinstance(error, InvalidEvent) and error.item == "w"
    assert "'rank-0'" in error.problem and "'rank-1'" in error.problem
    twice = error_of(one.session.send(one.session.frame(one.commit(1, [ref_one, ref_one], specs))))
    assert isinstance(twice, InvalidEvent) and twice.item == "w"


def test_a_prepared_commit_has_the_digest_and_the_schema_of_the_union_and_changes_nothing() -> None:
    core = start(role="weights")
    one, two = weights_over(core, "rank-0", 1), weights_over(core, "rank-1", 2)
    specs_one, ref_one = one.stage(1, {"w": W})
    specs_two, ref_two = two.stage(1, {"b": B})
    prepared = core.prepare_commit(PrepareCommit(77, 1, (ref_one, ref_two)))
    assert prepared.digest == version_digest(specs_one + specs_two) and not prepared.position
    assert [each.name for each in prepared.schema or ()] == ["b", "w"]
    assert core.versions() == []
    assert acked(one.session.send(one.session.frame(Commit(1, (ref_one, ref_two), prepared.digest))))


def test_a_prepared_commit_counts_the_tied_names_that_its_parts_leave_out() -> None:
    weights = weights_over()
    weights.publish(1, {"embed": W}, ties={"head": "embed"})
    core = weights.session.core
    _, without = weights.stage(2, {"embed": W})
    _, reverse = weights.stage(2, {"head": W})
    prepared = core.prepare_commit(PrepareCommit(77, 2, (without,)))
    assert prepared.schema is None
    assert prepared.digest == core.state.dense.sealed[0].digest
    assert core.prepare_commit(PrepareCommit(77, 2, (reverse,))).digest == prepared.digest
    assert acked(weights.session.send(weights.session.frame(Commit(2, (reverse,), prepared.digest))))


def test_preparing_what_is_sealed_of_the_very_parts_answers_where() -> None:
    weights = weights_over()
    specs, ref = weights.stage(1, {"w": W})
    weights.session.send(weights.session.frame(weights.commit(1, [ref], specs)))
    core = weights.session.core
    again = core.prepare_commit(PrepareCommit(77, 1, (ref,)))
    assert (again.position, again.digest) == (core.sequenced, version_digest(specs))
    assert PartitionState.decode(core.state.encode(), core.sequenced).dense.sealed[0].refs == (ref,)
    _, other = weights.stage(1, {"w": W[::-1]})
    with pytest.raises(VersionConflict):
        core.prepare_commit(PrepareCommit(77, 1, (other,)))


def test_preparing_is_refused_as_the_commit_would_be() -> None:
    weights = weights_over()
    weights.publish(1, {"w": W, "b": B})
    _, ref = weights.stage(2, {"w": W})
    core = weights.session.core
    with pytest.raises(SchemaMismatch, match="'b'") as caught:
        core.prepare_commit(PrepareCommit(77, 2, (ref,)))
    assert (caught.value.item, caught.value.topic) == ("b", "models")
    with pytest.raises(EventLost, match="'rank-7'"):
        core.prepare_commit(PrepareCommit(77, 2, (PartRef("rank-7", 1, 5),)))
    replaced = core.prepare_commit(PrepareCommit(77, 2, (ref,), "replace"))
    assert [each.name for each in replaced.schema or ()] == ["w"]
    with pytest.raises(VersionConflict):
        core.prepare_commit(PrepareCommit(77, 0, (ref,)))


def test_what_a_dead_rank_left_open_is_ended_by_the_next_incarnations_commit() -> None:
    core = start(role="weights")
    dead, other = weights_over(core, "rank-0", 1), weights_over(core, "rank-1", 2)
    dead.stage(1, {"w": W})
    dead.session.write(Chunk(1, (Segment("b", 0, 4),)), [B])  # it dies before its second part
    _, ref_other = other.stage(1, {"x": B})
    again = weights_over(core, "rank-0", 3)
    _, ref_again = again.stage(1, {"w": W[::-1]})
    prepared = core.prepare_commit(PrepareCommit(77, 1, (ref_other, ref_again)))
    assert acked(other.session.send(other.session.frame(Commit(1, (ref_other, ref_again), prepared.digest))))
    assert core.state.dense.parts == [] and core.state.dense.staged == []
    assert core.state.dense.open_from() is None


def test_chunks_lost_with_their_epoch_are_missed_by_the_commit_in_the_next() -> None:
    log = Log()
    core = start(log, role="weights")
    session = Session(core, log=log)
    session.join()
    weights = Weights(session)
    specs, ref = weights.stage(1, {"w": W})
    del log.frames[-1:]
    session.core = start(log, role="weights")
    session.join([1, 2])
    session.sequence = 2
    assert isinstance(error_of(session.send(session.frame(weights.commit(1, [ref], specs)))), EventLost)


def test_the_same_version_with_the_same_digest_is_answered_with_its_position() -> None:
    weights = weights_over()
    weights.publish(1, {"w": W})
    at = weights.session.core.sequenced
    weights.publish(2, {"w": W + W, "x": B}, schema="replace")
    for _ in range(2):
        answer = refused(weights.publish(1, {"w": W}))
        assert answer.position == at and answer.last_sequence == weights.session.last
    assert [version for version, _ in sealed(weights)] == [1, 2]


def test_under_write_through_the_position_of_the_same_version_is_told_once_it_is_durable() -> None:
    weights = weights_over(start(role="weights", persistence="write_through"))
    weights.publish(1, {"w": W})
    commit_at = weights.session.core.sequenced
    assert weights.publish(1, {"w": W}) == []
    *_, told = weights.session.core.synced(weights.session.core.sequenced)
    assert refused([told]).position == commit_at


def test_the_same_version_with_another_digest_conflicts() -> None:
    weights = weights_over()
    weights.publish(1, {"w": W})
    error = error_of(weights.publish(1, {"w": W[::-1]}))
    assert isinstance(error, VersionConflict) and error.version == 1 and error.topic == "models"


def test_a_lower_number_needs_rewind_which_supersedes_the_higher_ones() -> None:
    weights = weights_over()
    for version in (1, 2, 3):
        weights.publish(version, {"w": bytes([version]) * 4})
    low = weights.stage(2, {"w": W[:4]})
    assert isinstance(error_of(weights.publish(0, {"w": W[:4]})), VersionConflict)
    assert acked(weights.session.send(weights.session.frame(weights.commit(2, [low[1]], low[0], rewind=True))))
    assert [version for version, _ in sealed(weights)] == [1, 2]
    assert [(each.version, each.restorable) for each in weights.session.core.versions()] == [
        (1, True),
        (2, False),
        (3, False),
        (2, True),
    ]
    # The new lineage goes on from there: 3 is free again, whatever its digest was.
    assert acked(weights.publish(3, {"w": b"\7\0\0\0"}))


def test_which_numbers_a_rewind_superseded_is_told_for_good() -> None:
    weights = weights_over()
    told: list[list[int]] = []
    for version, rewind in ((1, False), (5, False), (3, True), (6, False), (5, True), (2, True)):
        weights.publish(version, {"w": bytes([version]) * 4}, rewind=rewind)
        told.append([number for _, number in weights.session.core.describe(0, 0).rewinds])
    assert told == [[], [], [3], [3], [3, 5], [2]], "what a later one covers is left out"
    core = weights.session.core
    (position, _), *_ = core.describe(0, 0).rewinds
    assert position == core.sequenced
    core.trimmed(core.sequenced)
    assert core.describe(0, 0).rewinds == ((position, 2),)


def test_one_version_is_told_with_the_context_of_its_commit() -> None:
    weights = weights_over()
    for version in (1, 2):
        weights.publish(version, {"w": bytes([version]) * 4})
    dense = weights.session.core.state.dense
    dense.sealed = [msgspec.structs.replace(each, context=b"what it rests on") for each in dense.sealed]
    at = sealed(weights)[0][1]
    (told,) = weights.session.core.versions(at)
    assert (told.version, told.position, told.context) == (1, at, b"what it rests on")
    assert [each.context for each in weights.session.core.versions()] == [b"", b""]


def test_going_back_to_an_older_version_with_its_own_digest_seals_it_anew() -> None:
    weights = weights_over()
    for version in (1, 2, 3):
        weights.publish(version, {"w": bytes([version]) * 4})
    assert acked(weights.publish(1, {"w": bytes([1]) * 4}, rewind=True))
    assert [version for version, _ in sealed(weights)] == [1]
    # Asked again it is the newest, and the same receipt.
    assert refused(weights.publish(1, {"w": bytes([1]) * 4}, rewind=True)).position == sealed(weights)[0][1]


def test_parts_end_by_a_commit_of_their_version_or_a_higher_one() -> None:
    weights = weights_over()
    low, high = weights.stage(5, {"w": W}), weights.stage(7, {"w": W})
    weights.publish(6, {"w": W})
    commit = weights.commit(5, [low[1]], low[0])
    assert isinstance(error_of(weights.session.send(weights.session.frame(commit))), VersionConflict)
    dense = weights.session.core.state.dense
    assert [part.version for part in dense.parts] == [7] and [run.version for run in dense.staged] == [7]
    assert acked(weights.session.send(weights.session.frame(weights.commit(7, [high[1]], high[0]))))
    assert (dense.parts, dense.staged) == ([], [])


def test_a_rewind_ends_all_open_parts() -> None:
    weights = weights_over()
    weights.publish(5, {"w": W})
    weights.stage(9, {"w": W})
    weights.publish(4, {"w": W}, rewind=True)
    assert weights.session.core.state.dense.parts == [] and weights.session.core.state.dense.staged == []


def test_chunks_are_kept_as_runs() -> None:
    weights = weights_over()
    for _ in range(1000):
        weights.session.write(Chunk(1, (Segment("w", 0, 4),)), [B])
    (run,) = weights.session.core.state.dense.staged
    assert (run.sequence, run.count, run.position + run.count - 1) == (1, 1000, weights.session.core.sequenced)


def test_runs_of_producers_that_take_turns_keep_each_chunks_own_position() -> None:
    core = start(role="weights")
    one, two = weights_over(core, "rank-0", 1), weights_over(core, "rank-1", 2)
    for weights in (one, two, one):
        weights.session.write(Chunk(1, (Segment("w", 0, 16),)), [W])
    tensor = replace(spec("w", W, 2), first_chunk=2)
    part = one.session.write(Part(1, (tensor,)))
    commit = one.commit(1, [PartRef("rank-0", 1, part)], [tensor])
    assert acked(one.session.send(one.session.frame(commit)))
    assert core.state.dense.sealed[0].chunks == ((position(core.epoch, 3), position(core.epoch, 3)),)


def test_a_run_ends_where_an_event_of_another_kind_stands_between() -> None:
    core = start(role="weights")
    one, two = weights_over(core, "rank-0", 1), weights_over(core, "rank-1", 2)
    one.session.write(Chunk(1, (Segment("w", 0, 8),)), [W[:8]])
    two.session.write(Part(1, (spec("b", b"", 0),)))
    one.session.write(Chunk(1, (Segment("w", 8, 8),)), [W[8:]])
    assert [(run.position, run.count) for run in core.state.dense.staged] == [
        (position(core.epoch, 1), 1),
        (position(core.epoch, 3), 1),
    ]


def test_a_tie_that_the_schema_does_not_have_is_a_mismatch() -> None:
    weights = weights_over()
    weights.publish(1, {"w": W, "v": W})
    error = error_of(weights.publish(2, {"w": W}, ties={"v": "w"}))
    assert isinstance(error, SchemaMismatch) and "tied to 'w'" in error.problem
    assert acked(weights.publish(2, {"w": W}, ties={"v": "w"}, schema="replace"))
    # Whichever of the two the others are tied to, it is the same tie.
    assert acked(weights.publish(3, {"v": W}, ties={"w": "v"}))


def test_a_placeholder_of_shape_zero_is_refused_with_both_shapes_A10() -> None:
    weights = weights_over()
    weights.publish(1, {"p": W, "q": B})
    error = error_of(weights.publish(2, {"p": b"", "q": B}))
    assert isinstance(error, SchemaMismatch) and error.item == "p"
    assert "(4,)" in error.problem and "(0,)" in error.problem
    assert [version for version, _ in sealed(weights)] == [1]


def test_names_shapes_and_dtypes_change_only_where_the_commit_says_replace() -> None:
    weights = weights_over()
    weights.publish(1, {"w": W, "b": B})
    assert isinstance(error_of(weights.publish(2, {"w": W})), SchemaMismatch)
    assert isinstance(error_of(weights.publish(2, {"w": W, "b": B, "x": B})), SchemaMismatch)
    half = TensorSpec("w", "float16", (8,), tensor_digest(W), 16, 0, 0)
    chunk = weights.session.write(Chunk(2, (Segment("w", 0, 16),)), [W])
    part = weights.session.write(Part(2, (replace(half, first_chunk=chunk, last_chunk=chunk), spec("b", b"", 0))))
    ref = PartRef("trainer-0", 1, part)
    commit = Commit(2, (ref,), version_digest([half, spec("b", b"", 0)]))
    error = error_of(weights.session.send(weights.session.frame(commit)))
    assert isinstance(error, SchemaMismatch)
    assert acked(weights.publish(2, {"w": W + W}, schema="replace"))
    assert [each.shape for each in weights.session.join().schema or ()] == [(8,)]


def test_zero_size_tensors_need_no_chunk_and_are_no_aliases_A04() -> None:
    weights = weights_over()
    assert acked(weights.publish(1, {"a": b"", "b": b"", "e": W}))
    assert weights.session.core.versions()[0].tensors == 3


def test_a_tied_name_may_be_left_out_and_counts_its_bytes_once_C01() -> None:
    weights = weights_over()
    weights.publish(1, {"embed": W}, ties={"head": "embed"})
    assert weights.session.core.versions()[0].nbytes == len(W)
    assert acked(weights.publish(2, {"embed": W}))
    assert acked(weights.publish(3, {"head": W}))
    assert acked(weights.publish(4, {"embed": W, "head": W}))
    error = error_of(weights.publish(5, {"embed": W, "head": W[::-1]}))
    assert isinstance(error, SchemaMismatch) and "tied tensors disagree" in error.problem


def test_the_digest_may_be_over_the_version_with_its_tied_names() -> None:
    weights = weights_over()
    weights.publish(1, {"embed": W}, ties={"head": "embed"})
    specs, ref = weights.stage(2, {"embed": W})
    whole = [*specs, spec("head", W, 0, tied_to="embed")]
    assert acked(weights.session.send(weights.session.frame(weights.commit(2, [ref], whole))))


def test_a_part_whose_ties_disagree_is_refused() -> None:
    weights = weights_over()
    chunk = weights.session.write(Chunk(1, (Segment("embed", 0, 16),)), [W])
    tied = spec("head", W[::-1], 0, tied_to="embed")
    error = weights.session.refusal(Part(1, (spec("embed", W, chunk), tied)))
    assert isinstance(error, InvalidEvent) and error.item == "head"
    nowhere = weights.session.refusal(Part(1, (spec("head", W, 0, tied_to="embed"),)))
    assert isinstance(nowhere, InvalidEvent)


def test_a_part_that_names_a_tensor_twice_or_no_chunk_of_its_bytes_is_refused() -> None:
    weights = weights_over()
    chunk = weights.session.write(Chunk(1, (Segment("w", 0, 16),)), [W])
    assert isinstance(weights.session.refusal(Part(1, (spec("w", W, chunk), spec("w", W, chunk)))), InvalidEvent)
    assert isinstance(weights.session.refusal(Part(1, (spec("w", W, 0),))), InvalidEvent)
    assert isinstance(weights.session.refusal(Part(1, (spec("w", W, chunk + 1),))), InvalidEvent)


def test_two_parts_that_disagree_about_a_tensor_are_refused() -> None:
    core = start(role="weights")
    one, two = weights_over(core, "rank-0", 1), weights_over(core, "rank-1", 2)
    specs, ref_one = one.stage(1, {"w": W})
    _, ref_two = two.stage(1, {"w": W[::-1]})
    error = error_of(one.session.send(one.session.frame(one.commit(1, [ref_one, ref_two], specs))))
    assert isinstance(error, InvalidEvent) and error.item == "w"


def test_a_commit_with_a_digest_that_its_parts_do_not_have_is_refused() -> None:
    weights = weights_over()
    _, ref = weights.stage(1, {"w": W})
    error = weights.session.refusal(Commit(1, (ref,), bytes(16)))
    assert isinstance(error, InvalidEvent) and "digest" in error.problem


def test_a_refused_commit_leaves_its_parts_open() -> None:
    weights = weights_over()
    specs, ref = weights.stage(1, {"w": W})
    weights.session.refusal(Commit(1, (ref,), bytes(16)))
    assert acked(weights.session.send(weights.session.frame(weights.commit(1, [ref], specs))))


def test_what_the_logs_start_has_passed_is_forgotten_and_no_longer_restorable() -> None:
    weights = weights_over()
    core = weights.session.core
    for version in (1, 2, 3):
        weights.publish(version, {"w": W})
    first, second, _ = core.state.dense.sealed
    core.trimmed(second.first)
    assert [(each.version, each.restorable) for each in core.versions()] == [(2, False), (3, True)]
    core.trimmed(core.sequenced)
    assert [(each.version, each.restorable) for each in core.versions()] == [(3, False)]
    assert isinstance(error_of(weights.publish(2, {"w": W})), VersionConflict)
    assert first.version == 1


def test_a_reader_that_starts_at_latest_start_gets_the_newest_version_whole() -> None:
    weights = weights_over()
    core = weights.session.core
    weights.publish(1, {"w": W})
    weights.publish(2, {"w": W})
    core.synced(core.sequenced)
    newest = core.state.dense.sealed[-1]
    record = core.describe(log_start=0, monotonic_ns=10**12)
    assert (record.start, record.latest_start, record.latest) == (0, newest.first - 1, newest.position)
    assert core.describe(newest.position, 10**12).latest_start == newest.position
    assert start().describe(17, 10**12).latest_start == 17


def test_the_latest_version_is_a_durable_one_and_none_after_it_begins_before_its_start() -> None:
    weights = weights_over()
    core = weights.session.core
    weights.publish(1, {"w": W})
    core.synced(core.sequenced)
    durable = core.state.dense.sealed[-1]
    weights.publish(2, {"w": W})
    record = core.describe(log_start=0, monotonic_ns=10**12)
    assert (record.latest, record.latest_start) == (durable.position, durable.first - 1)
    core.synced(core.sequenced)
    assert core.describe(0, 10**12).latest == core.state.dense.sealed[-1].position


def test_before_the_first_version_a_reader_starts_at_a_durable_position() -> None:
    """One that passed what may still be lost waited for it for ever."""
    weights = weights_over()
    core = weights.session.core
    core.synced(core.sequenced)
    opened = core.sequenced
    core.write(Note(), (), 10**12)
    weights.stage(1, {"w": W})
    assert core.describe(0, 10**12).latest_start == opened
    core.synced(core.sequenced)
    assert core.describe(0, 10**12).latest_start == opened + 1
