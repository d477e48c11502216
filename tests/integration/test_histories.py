"""What a client records over a real broker, and what the checker says of it."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paramstream as ps
from paramstream.consistency.checking import Model, check_history
from paramstream.consistency.history import Lost, Read, Write, read_lines
from processes.victim import Victim
from processes.world import START_S

WAIT_S = 10.0


@ps.processor(source="model", sink="counts")
def counting(event: ps.Event, state: Any, out: ps.Output) -> None:
    for key, *_ in event.items:
        state["n"] = state.get("n", 0) + 1
        out.put(key, b"%d" % state["n"])


def check(*files: Path) -> None:
    for model in Model:
        verdict = check_history(files, model)
        assert verdict.ok and verdict.operations and verdict.deliveries, (verdict.faults, verdict.witness)


def test_producers_processors_and_replicas_of_a_client_record_in_one_file(broker: ps.Broker, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with ps.connect(broker.endpoint, history=path) as client:
        for topic in ("model", "counts"):
            client.create_topic(topic, partitions=2)
        replica = client.replica(["model", "counts"], name="r0", arrays="numpy")
        pub = client.publisher("model", producer="t0", observes=replica)
        with client.run(counting, name="counter", state=tmp_path / "state"):
            pub.put_many({f"k{n}": b"1" for n in range(8)})
            replica.wait(pub.publish_weights({"w": np.ones(4, np.float32)}, version=1), WAIT_S)
            replica.weights(topic="model")
            replica.wait(pub.delete("k1"), WAIT_S)
            counted = client.subscribe("counts", start="earliest")
            assert sum(len(counted.next(WAIT_S).items) for _ in range(9)) == 9
            replica.get_many([f"k{n}" for n in range(9)], topic="model")
        pub.observe(replica)
        pub.put("k1", b"2")
    lines = [line for _, line in read_lines(path)]
    writers = {line.process.split("/")[0] for line in lines if isinstance(line, Write)}
    assert writers == {"t0", "r0", "counter"}
    assert {line.key.split("/", 1)[1] for line in lines if isinstance(line, Read)} >= {"kv/k0", "kv/k8", "weights"}
    check(path)


def test_threads_that_share_a_publisher_and_a_replica_record_what_holds(broker: ps.Broker, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with ps.connect(broker.endpoint, history=path) as client, ps.connect(broker.endpoint, history=path) as other:
        client.create_topic("model", partitions=3)
        client.create_table("model", "t", dim=2, optimizer=ps.Adagrad(0.1))
        replica = client.replica("model", arrays="numpy")
        pub, rival = client.publisher("model", "t0", observes=replica), other.publisher("model", "t1", replica)

        def work(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(60):
                keys = [f"k{n}" for n in chance.sample(range(4), chance.choice((1, 1, 3)))]
                mine, rows = chance.choice((pub, rival)), chance.sample(range(4), chance.choice((1, 3)))
                match chance.randrange(5):
                    case 0:
                        mine.put_many(dict.fromkeys(keys, b""))
                    case 1:
                        mine.publish_rows("t", rows, np.ones((len(rows), 2), np.float32))
                    case 2:
                        mine.delete_rows("t", rows)
                    case _:
                        mine.publish_gradients("t", rows, np.ones((len(rows), 2), np.float32))
                replica.get(f"k{chance.randrange(4)}")
                replica.lookup("t", chance.sample(range(5), 2))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
            assert not thread.is_alive()
        for each in (pub, rival):
            each.flush()
    read = {line.key.split("/", 1)[1] for _, line in read_lines(path) if isinstance(line, Read)}
    assert read >= {f"rows/t/{key}" for key in range(5)}
    check(path)


def test_what_was_written_before_anybody_recorded_is_no_value_of_nobody(
    broker: ps.Broker, client: ps.Client, tmp_path: Path
) -> None:
    client.create_topic("model")
    client.publisher("model", producer="t0").put("k", b"1").accepted.result(WAIT_S)
    path = tmp_path / "history.jsonl"
    with ps.connect(broker.endpoint, history=path) as recording:
        assert recording.replica("model").get("k") == b"1"
    assert check_history([path], Model.CAUSAL).ok


def test_what_a_power_failure_takes_is_called_lost_and_all_else_is_consistent(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.jsonl" for name in ("raises", "goes-again")]
    chance = random.Random(5)
    keys = [f"k{n}" for n in range(4)]
    with (
        Victim(tmp_path) as victim,
        ps.connect(victim.endpoint, history=files[0], timeout=START_S) as raises,
        ps.connect(victim.endpoint, history=files[1], timeout=START_S) as again,
    ):
        raises.create_topic("model", partitions=2)
        replicas = [client.replica("model", arrays="numpy") for client in (raises, again)]
        pubs = [
            raises.publisher("model", "t0", observes=replicas[0]),
            again.publisher("model", "t1", observes=replicas[1], lost="again"),
        ]

        def work() -> None:
            for _ in range(40):
                for pub, replica in zip(pubs, replicas, strict=True):
                    receipt = pub.put_many(dict.fromkeys(chance.sample(keys, chance.choice((1, 3))), b""))
                    if chance.random() < 0.3:
                        replica.wait(receipt, START_S)
                    replica.get(chance.choice(keys))

        work()
        pubs[0].put("kept", b"old").durable.result(WAIT_S)
        victim.hold_syncs()
        work()
        replicas[0].wait(pubs[0].put("kept", b"new"), WAIT_S)
        assert replicas[0].get_many([*keys, "kept"])[-1] == b"new"
        victim.die(power=True)
        victim.start_again()
        for pub, replica in zip(pubs, replicas, strict=True):
            replica.wait(pub.put("k0", b""), START_S)
            assert replica.get_many([*keys, "kept"])[-1] == b"old"
        with pytest.raises(ps.EventLost):
            pubs[0].flush(START_S)
    check(*files)
    lost = [line for file in files for _, line in read_lines(file) if isinstance(line, Lost)]
    who = {line.process.split("/")[0] for line in lost if line.key.endswith("/kept")}
    assert who >= {"t0", replicas[0].name}


@pytest.mark.parametrize("path", ["", "no/such/folder/h.jsonl", "."])
def test_a_history_that_cannot_be_written_is_told_before_anything_is_done(path: str) -> None:
    with pytest.raises(ps.InvalidEvent, match="no history can be written"):
        ps.connect("tcp://127.0.0.1:9", history=path)
