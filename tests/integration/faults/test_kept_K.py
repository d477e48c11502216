"""Fault cases K01 and K02: what was said to be kept is there after kills and power failures."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

import paramstream as ps
from processes.victim import Victim
from processes.world import START_S
from reference.waiting import eventually

WAIT_S = 60.0
ACKS = 1000


@pytest.mark.parametrize("persistence", ["write_through", "write_back"])
def test_what_was_said_to_be_durable_outlives_a_power_failure_K01(persistence: str, tmp_path: Path) -> None:
    with Victim(tmp_path) as victim, ps.connect(victim.endpoint, timeout=START_S) as client:
        client.create_topic("model", partitions=2, persistence=persistence)
        publisher = client.publisher("model", producer="trainer")
        receipts = [
            publisher.put_many({f"key-{n}": b"%d" % n for n in range(at, at + 10)}) for at in range(0, ACKS, 10)
        ]
        for receipt in receipts:
            # Under write_through the first answer is of what the log has; under write_back the second.
            (receipt.accepted if persistence == "write_through" else receipt.durable).result(WAIT_S)
        victim.hold_syncs()
        more = [publisher.put(f"key-{n}", b"never synced") for n in range(10)]
        if persistence == "write_back":
            for receipt in more:
                receipt.accepted.result(WAIT_S)
        assert {receipt.outcome for receipt in more} == {"accepted" if persistence == "write_back" else "pending"}

        victim.die(power=True)
        victim.start_again()
        with client.replica("model", start="earliest", arrays="numpy") as replica:
            again = [b"never synced"] * 10 if persistence == "write_through" else [b"%d" % n for n in range(10)]
            if persistence == "write_through":
                publisher.flush(WAIT_S)  # They were never shown, and go again by themselves.
                for receipt in more:
                    replica.wait(receipt, WAIT_S)
            else:
                for receipt in more:
                    with pytest.raises(ps.EventLost):
                        receipt.durable.result(WAIT_S)
            expected = again + [b"%d" % n for n in range(10, ACKS)]
            assert replica.get_many([f"key-{n}" for n in range(ACKS)]) == expected
        assert all(count == 1 for count in victim.log(client).identities.values())


class Creating:
    """Makes, fills and deletes topics in a thread of its own, and notes what it was told."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._stop = threading.Event()
        self.kept: dict[str, tuple[int, int, bytes]] = {}
        """Topic → (id, partitions, the value that is durable in it)."""
        self.gone: set[str] = set()
        self.doubtful: set[str] = set()
        """What the last call was about, if the broker died in it."""
        self.made = 0
        self.error: ps.ParamstreamError | AssertionError | None = None
        self._thread = threading.Thread(target=self._run, name="creating")
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def goes_on(self) -> None:
        """Returns once it is at another topic than now, or has failed."""
        before = self.made
        eventually(lambda: self.made > before or self.error, WAIT_S)

    def _run(self) -> None:
        try:
            with ps.connect(self._endpoint, timeout=START_S) as client:
                while not self._stop.is_set():
                    self.made += 1
                    self._one(client, f"topic-{self.made}")
        except (ps.ParamstreamError, AssertionError) as error:  # For the test's own thread.
            self.error = error

    def _one(self, client: ps.Client, name: str) -> None:
        self.doubtful.add(name)
        try:
            made = client.create_topic(name, partitions=1 + self.made % 3, timeout=WAIT_S)
        except ps.OutcomeUnknown:
            return
        value = name.encode()
        with client.publisher(name, producer=f"filler-{self.made}", timeout=WAIT_S) as publisher:
            self._fill(publisher, value)
        self.kept[name] = made.id, made.partitions, value
        self.doubtful.discard(name)
        if self.made % 4 == 0:
            del self.kept[name]
            self.doubtful.add(name)
            try:
                client.delete_topic(name, timeout=WAIT_S)
            except (ps.OutcomeUnknown, ps.UnknownTopic):
                return
            self.doubtful.discard(name)
            self.gone.add(name)

    def _fill(self, publisher: ps.Publisher, value: bytes) -> None:
        """A power failure may take what was accepted; then it is put again."""
        lost = True
        while lost:
            try:
                publisher.put("key", value).durable.result(WAIT_S)
                lost = False
            except ps.EventLost:
                pass


def run_topics(folder: Path, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    with Victim(folder) as victim:
        creating = Creating(victim.endpoint)
        try:
            for number in range(kills):
                creating.goes_on()
                time.sleep(chance.uniform(0.0, 0.2))  # The random moment; nothing is waited for here.
                victim.die(power=number % 2 == 1)
                victim.start_again()
        finally:
            creating.stop()
        with ps.connect(victim.endpoint, timeout=START_S) as client:
            found = {topic.name: topic for topic in client.topics()}
            about = f"seed {seed}"
            assert creating.kept.keys() - found.keys() == set(), about
            assert creating.gone & found.keys() == set(), about
            assert found.keys() - creating.kept.keys() <= creating.doubtful, about
            for name, (topic_id, partitions, value) in creating.kept.items():
                assert (found[name].id, found[name].partitions) == (topic_id, partitions), about
                assert victim.log(client, name).standing == {b"key": value}, about
            # The last one is taken whole, as any.
            name = max(creating.kept, key=lambda name: int(name.split("-")[1]))
            with client.replica(name, arrays="numpy") as replica:
                assert replica.get("key") == name.encode()


def test_a_broker_killed_while_topics_are_made_forgets_none_K02(tmp_path: Path, seed: int) -> None:
    run_topics(tmp_path, seed, 5)


@pytest.mark.slow
def test_a_broker_killed_fifty_times_while_topics_are_made_forgets_none_K02(tmp_path: Path, seed: int) -> None:
    run_topics(tmp_path, seed, 50)
