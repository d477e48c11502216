"""Fault case K03, of the log: one flipped bit at rest is named by its place, all else stays readable, and no wrong byte is served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paramstream as ps
from paramstream.eventlog.index import SUFFIX as INDEX_SUFFIX
from paramstream.eventlog.local import partition_folder
from paramstream.eventlog.segment import SUFFIX as SEGMENT_SUFFIX
from reference.weights import check_weights

LIMIT = 16 * 256 * 1024
"""Segments of 256 KiB: what is written here fills some."""
VALUE_BYTES = 10_000
KEYS = 120
WEIGHTS = {"w": np.arange(1000, dtype=np.float32)}
WAIT_S = 30.0


def value_of(number: int) -> bytes:
    return b"value %04d " % number + bytes([number % 251]) * VALUE_BYTES


class Written:
    """A log in a folder, and what was written to it."""

    def __init__(self, folder: Path) -> None:
        self.url = f"file:{folder}"
        with ps.Broker(log=self.url, log_limit=LIMIT) as broker, ps.connect(broker.endpoint) as client:
            topic = client.create_topic("model", partitions=2)
            pub = client.publisher("model", producer="trainer")
            self.places = {n: pub.put(f"key-{n}", value_of(n)).positions for n in range(KEYS)}
            pub.publish_weights(WEIGHTS, version=1)
            pub.flush(WAIT_S)
            with client.replica("model", arrays="numpy") as replica:
                self.digest = replica.digest()
        self.folder = partition_folder(folder, (topic.id, 0))
        self.numbers = [n for n, place in self.places.items() if ("model", 0) in place]
        """Of the values in the partition that is to be damaged, in their order."""

    def flip_in_segment(self, number: int) -> tuple[Path, int]:
        """Flip one bit in the middle of a value: its file, and the value's offset there."""
        for path in sorted(self.folder.glob(f"*{SEGMENT_SUFFIX}")):
            data = bytearray(path.read_bytes())
            at = data.find(value_of(number))
            if at >= 0:
                data[at + VALUE_BYTES // 2] ^= 0x10
                path.write_bytes(data)
                return path, at
        raise AssertionError(f"value {number} stands nowhere")


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "log")


def check_named(error: ps.CorruptLog, path: Path, before: int) -> None:
    """It names the file, and the record behind which the damage is."""
    assert str(path) in str(error) and "damaged at offset" in str(error)
    assert (error.partition, error.position) == (0, before)


def test_a_flipped_bit_in_a_closed_segment_is_named_and_all_others_stay_readable_K03(written: Written) -> None:
    at = len(written.numbers) // 4
    damaged, before = written.numbers[at], written.places[written.numbers[at - 1]]["model", 0]
    path, _ = written.flip_in_segment(damaged)
    assert path != max(written.folder.glob(f"*{SEGMENT_SUFFIX}")), "it is a closed one"
    with ps.Broker(log=written.url, log_limit=LIMIT) as broker, ps.connect(broker.endpoint) as client:
        # In order up to it, then its name, and never its bytes.
        with client.subscribe("model", start="earliest") as events:
            seen: dict[bytes, bytes | None] = {}
            with pytest.raises(ps.CorruptLog) as caught:
                while True:
                    event = events.next(WAIT_S)
                    seen.update({key: value for key, value, _ in event.items})
        check_named(caught.value, path, before)
        expected = {b"key-%d" % n: value_of(n) for n in range(KEYS)}
        assert seen.items() <= expected.items()
        assert all(b"key-%d" % n in seen for n in written.numbers[:at])
        assert all(b"key-%d" % n not in seen for n in written.numbers[at:])
        # What stands behind it is read from there on.
        begin = written.places[damaged]
        left = {b"key-%d" % n for n in written.numbers[at + 1 :]}
        with client.subscribe("model", start=begin) as events:
            while left:
                for key, value, _ in events.next(WAIT_S).items:
                    assert value == expected[key]
                    left.discard(key)
        # A replica that needs it says so, and one of the other partition and the weights has all that it asks for.
        with pytest.raises(ps.CorruptLog) as caught, client.replica("model", arrays="numpy"):
            pass
        check_named(caught.value, path, before)
        with client.replica("model", partitions=[1], arrays="numpy") as beside:
            others = [n for n in range(KEYS) if n not in written.numbers]
            assert beside.get_many([f"key-{n}" for n in others]) == [value_of(n) for n in others]
            check_weights(beside.weights(), WEIGHTS, 1)
            # The log takes more, in both partitions.
            pub = client.publisher("model", producer="trainer")
            more = pub.put_many({f"more-{n}": b"more" for n in range(10)})
            pub.flush(WAIT_S)
            beside.wait(ps.VersionVector({("model", 1): more.positions["model", 1]}), WAIT_S)
    with pytest.raises(ps.CorruptLog) as caught, ps.restore(written.url, "model", arrays="numpy"):
        pass
    check_named(caught.value, path, before)
    with ps.restore(written.url, "model", dense_only=True, arrays="numpy") as restored:
        check_weights(restored.weights(), WEIGHTS, 1)


def test_a_flipped_bit_in_the_newest_segment_stops_its_partition_with_its_name_K03(written: Written) -> None:
    at = len(written.numbers) - 2
    before = written.places[written.numbers[at - 1]]["model", 0]
    path, _ = written.flip_in_segment(written.numbers[at])
    assert path == max(written.folder.glob(f"*{SEGMENT_SUFFIX}"))
    size = path.stat().st_size
    others = [n for n in range(KEYS) if n not in written.numbers]
    with ps.Broker(log=written.url, log_limit=LIMIT) as broker, ps.connect(broker.endpoint) as client:
        (stopped,) = broker.status().stopped.values()
        assert str(path) in stopped and path.stat().st_size == size, "nothing behind the damage is cut"
        with pytest.raises(ps.CorruptLog) as caught, client.replica("model", arrays="numpy"):
            pass
        check_named(caught.value, path, before)
        # The other partitions are served.
        with client.replica("model", partitions=[1], arrays="numpy") as beside:
            assert beside.get_many([f"key-{n}" for n in others]) == [value_of(n) for n in others]
            check_weights(beside.weights(), WEIGHTS, 1)
        pub = client.publisher("model", producer="trainer")
        pub.put(f"key-{others[0]}", b"more").durable.result(WAIT_S)
        pub.publish_weights({"w": WEIGHTS["w"] + 1}, version=2).durable.result(WAIT_S)
        with pytest.raises(ps.CorruptLog) as caught:
            pub.put(f"key-{written.numbers[0]}", b"more", timeout=WAIT_S).accepted.result(WAIT_S)
        assert str(path) in str(caught.value)
    with ps.restore(written.url, "model", at=2, dense_only=True, arrays="numpy") as restored:
        check_weights(restored.weights(), {"w": WEIGHTS["w"] + 1}, 2)


def test_a_flipped_bit_in_an_index_changes_nothing_K03(written: Written) -> None:
    indices = sorted(written.folder.glob(f"*{INDEX_SUFFIX}"))
    assert indices
    for path in indices:
        good = path.read_bytes()
        for offset in range(0, len(good), 7):
            path.write_bytes(good[:offset] + bytes([good[offset] ^ 0x04]) + good[offset + 1 :])
            with ps.restore(written.url, "model", arrays="numpy") as restored:
                assert restored.digest() == written.digest
        with ps.Broker(log=written.url, log_limit=LIMIT) as broker, ps.connect(broker.endpoint) as client:
            with client.replica("model", start="earliest", arrays="numpy") as replica:
                assert replica.digest() == written.digest
            with client.subscribe("model", start=written.places[written.numbers[-3]]) as events:
                read = (event for event in events if event.partition == 0)
                assert [next(read).items[0][1] for _ in range(2)] == [value_of(n) for n in written.numbers[-2:]]
