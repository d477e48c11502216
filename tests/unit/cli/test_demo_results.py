"""What the demo concludes from what its processes said."""

import json

from paramstream.cli.demo.messages import Finished, Published, Ready, Report, Scored, Shown, decode_report, encode
from paramstream.cli.demo.results import Restart, Results
from paramstream.cli.demo.table import lines

MS = 1_000_000


def finished(results: Results, **digests: str) -> None:
    for name, digest in digests.items():
        results.take(name.replace("_", "-"), Finished(9, 0.9, digest, "" if name == "trainer" else f"all of {digest}"))


def new_results() -> Results:
    return Results(["replica-0", "replica-1"])


def test_equal_digests_of_everybody_are_equal() -> None:
    results = new_results()
    finished(results, trainer="a", replica_0="a", replica_1="a")
    assert results.digests_equal()


def test_one_other_digest_is_not_equal() -> None:
    for odd in ("trainer", "replica_0", "replica_1"):
        results = new_results()
        finished(results, **{"trainer": "a", "replica_0": "a", "replica_1": "a", odd: "b"})
        assert not results.digests_equal()


def test_a_replica_that_never_finished_is_not_equal() -> None:
    results = new_results()
    finished(results, trainer="a", replica_0="a")
    assert not results.digests_equal()


def test_staleness_is_told_whichever_pipe_was_heard_first() -> None:
    results = new_results()
    results.take("replica-0", Shown(1, 5 * MS))
    assert results.stale_ms == []
    results.take("trainer", Published(1, 2 * MS))
    results.take("replica-1", Shown(1, 6 * MS))
    assert results.stale_ms == [3.0, 4.0]


def test_a_killed_replica_shows_nothing_until_it_is_back() -> None:
    results = new_results()
    results.take("replica-1", Ready(0))
    results.take("replica-1", Shown(1, 0))
    results.take("replica-1", Scored(1, 0.5))
    killed = results.replicas["replica-1"]
    killed.gone("killed")
    assert (killed.version, killed.accuracy, killed.ready, killed.switches) == (None, None, False, 0)
    assert results.lag(killed) is None
    assert any(line.startswith("replica-1") and line.endswith("killed") for line in lines(results))


def test_the_object_names_what_was_asked_for_and_is_json() -> None:
    results = new_results()
    for version in (1, 2):
        results.take("trainer", Published(version, 0))
        results.take("replica-0", Shown(version, version * MS))
    results.restart = Restart("replica-1", 1, 2, 0.5)
    finished(results, trainer="a", replica_0="a", replica_1="a")
    record = json.loads(json.dumps(results.record(3.0)))
    assert record["versions"] == 2
    assert [(each["version"], each["digest"]) for each in record["replicas"]] == [(9, "a"), (9, "a")]
    assert record["digests_equal"] is True
    assert record["restored_replica"] == "replica-1"
    assert record["accuracy"] == {"trainer": 0.9, "replicas": [0.9, 0.9]}
    assert record["staleness_ms"] == {"p50": 1.5, "p99": 1.99, "samples": 2}


def test_reports_survive_the_pipe() -> None:
    report: Report
    for report in (Ready(3), Published(4, 5), Shown(4, 6), Scored(4, 0.25), Finished(4, 0.5, "d", "s")):
        assert decode_report(encode(report)) == report
