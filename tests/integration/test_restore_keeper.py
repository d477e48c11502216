"""A restore from a broker whose rows and KV have left the log, behind its keeper's snapshots."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from reference.waiting import eventually


def test_what_has_left_the_log_comes_from_the_brokers_keeper(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    with (
        ps.Broker(log=log, keeper=tmp_path / "keeper", log_limit="4MiB") as broker,
        ps.connect(broker.endpoint) as client,
    ):
        client.create_topic("model")
        trainer = client.publisher("model", producer="trainer")
        live = client.replica("model", arrays="numpy")
        first = trainer.put("first", b"1").accepted.result(10)
        turns = itertools.count()

        def write() -> bool:
            try:
                for turn in itertools.islice(turns, 10):
                    trainer.put(f"k{turn % 7}", bytes([turn % 256]) * 20_000)
                trainer.flush()
                client.replica("model", start="earliest").close()
            except ps.LogTruncated:
                return True
            except ps.StorageFull:
                pass
            return False

        eventually(write, 60.0)
        live.wait(trainer.publish_weights({"w": np.full(8, 1.5)}, 1))
        expected = live.digest()
        trainer.put("later", b"1").durable.result(10)
        last = trainer.put("last", b"1").durable.result(10)
        for at in (1, last):
            with ps.restore(broker.endpoint, "model", at=at, arrays="numpy") as replica:
                assert replica.weights()["w"].tolist() == [1.5] * 8 and replica.get("first") == b"1"
                assert (replica.get("later") is None) == (at == 1)
                assert at != 1 or replica.digest() == expected
        with ps.restore(log, "model", at=1, snapshots=tmp_path / "keeper", arrays="numpy") as replica:
            assert replica.digest() == expected
        with client.replica("model", start=last, arrays="numpy") as begun:
            assert begun.get("first") == begun.get("last") == b"1" and begun.weights().version == 1
        with pytest.raises(ps.LogTruncated):
            ps.restore(broker.endpoint, "model", at=first)
        with pytest.raises(ps.LogTruncated):
            client.replica("model", start=first)

        def is_below_the_keepers_snapshots() -> str:
            write()
            try:
                ps.restore(broker.endpoint, "model", at=1).close()
            except ps.LogTruncated as error:
                # Not so where the keeper has replaced, just now, the snapshot that was being read.
                return str(error) if "no whole snapshot" in str(error) else ""
            return ""

        refused = eventually(is_below_the_keepers_snapshots, 60.0)
        assert "no whole snapshot lies between there and the target" in refused and "dense_only=True" in refused
        with ps.restore(broker.endpoint, "model", at=1, dense_only=True, arrays="numpy") as replica:
            assert replica.weights().version == 1
