"""Fault case H11: a trainer that stood still while another took its name comes back, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import paramstream as ps
from paramstream.consumers.events import Event
from processes.child import Child
from processes.load import weights_of
from processes.world import START_S
from reference.waiting import eventually
from reference.weights import check_weights

WAIT_S = 30.0
FLOOD = 20_000


def told(events: ps.Subscription, until: ps.Receipt) -> list[Event]:
    """All that a subscription yields, up to the last event of `until` in each of its partitions."""
    left = dict(until.positions)
    found: list[Event] = []
    while left:
        event = events.next(WAIT_S)
        found.append(event)
        if left.get((event.topic, event.partition)) == event.position:
            del left[event.topic, event.partition]
    return found


def test_a_paused_trainer_that_lost_its_name_is_fenced_and_its_bytes_appear_nowhere_H11(tmp_path: Path) -> None:
    with ps.Broker(log=f"file:{tmp_path / 'log'}") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("model", retain_versions=20)
        early = client.replica("model", name="early", arrays="numpy")
        arguments = (broker.endpoint, "model", "trainer")
        with Child("trainer", *arguments, errors=tmp_path / "stderr") as first:
            first.read(START_S)
            for version in range(1, 11):
                assert first.ask("publish", WAIT_S, version=version, value=version)["outcome"] == "durable"

            # It is stopped with values on the wire, and with its own 11 and 12 before it.
            first.send("flood", count=FLOOD)
            eventually(lambda: early.get("flood-100"))
            first.pause()
            first.send("publish", version=11, value=111)
            first.send("publish", version=12, value=112)
            first.send("outcomes")
            second = client.publisher("model", producer="trainer")
            second.publish_weights(weights_of(11), version=11)
            second.publish_weights(weights_of(12), version=12)
            taken = second.put("taken", b"by the second")
            second.flush(WAIT_S)

            first.resume()
            assert [first.read(WAIT_S)["outcome"] for _ in range(2)] == ["Fenced", "Fenced"]
            outcomes: dict[str, str] = first.read(2 * WAIT_S)["outcomes"]

        kept = [key for key, outcome in outcomes.items() if outcome == "durable"]
        assert set(outcomes.values()) == {"durable", "Fenced"} and len(outcomes) == FLOOD
        assert kept == [f"flood-{number}" for number in range(len(kept))], "what counts is a prefix of what it put"
        last = second.put("last", b"put")
        late = client.replica("model", name="late", arrays="numpy", keep_versions=20, catch_up="all", start="earliest")
        for replica in (early, late):
            replica.wait(last, WAIT_S)
            check_weights(replica.weights(), weights_of(12), 12)
            assert replica.get("taken") == b"by the second"
            assert [key for key in outcomes if replica.get(key) is not None] == kept
        check_weights(late.weights(version=11), weights_of(11), 11)
        assert early.digest() == late.digest()

        with client.subscribe("model", start="earliest") as events:
            told_of = told(events, taken)
        incarnations = [event.incarnation for event in told_of if event.partition == 1]
        assert incarnations == sorted(incarnations) and len(set(incarnations)) == 2, "nothing of the first follows"
        versions = [event.version for event in told_of if event.kind == "commit"]
        assert versions == list(range(1, 13))
