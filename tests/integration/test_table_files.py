"""Tables go out to safetensors files that other tools read, and come in from such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import paramstream as ps

WAIT_S = 20.0
KEYS = np.array([-1, 0, 2**63 - 1, -(2**63), *range(100, 140)])


def test_a_table_that_was_exported_is_imported_with_the_same_rows(client: ps.Client, tmp_path: Path) -> None:
    client.create_topic("ads", partitions=3)
    for name in ("users", "copy"):
        client.create_table("ads", name, dim=3, dtype="bfloat16", optimizer=ps.Adam(0.1))
    pub, path = client.publisher("ads", producer="trainer"), tmp_path / "users.safetensors"
    rows = np.arange(3 * len(KEYS)).reshape(-1, 3).astype(ml_dtypes.bfloat16)
    pub.publish_rows("users", KEYS, rows)
    pub.publish_gradients("users", KEYS[:5], rows[:5])
    last = pub.delete_rows("users", KEYS[10:20])
    with client.replica("ads", arrays="numpy") as replica:
        replica.wait(last, WAIT_S)
        assert replica.export_table("users", path, state=True) == len(KEYS) - 10
        held = safetensors.torch.load_file(path)
        assert held["rows"].dtype == torch.bfloat16 and held["state"].shape == (len(KEYS) - 10, 7)
        receipt = pub.import_table("copy", path)
        replica.wait(receipt, WAIT_S)
        for name in ("users", "copy"):
            values, found = replica.lookup(name, KEYS, return_found=True)
            assert found.sum() == len(KEYS) - 10 and not found[10:20].any()
            assert (values == replica.lookup("users", KEYS)).all()
        (out,) = [name for name in tmp_path.iterdir() if name.name.startswith("users")]
        assert out == path and len(list(tmp_path.iterdir())) == 1
        # An empty table is a file, too, and an import of nothing is done at once.
        client.create_table("ads", "none", dim=3, dtype="bfloat16")
        replica.wait(pub.publish_rows("none", KEYS[:1], rows[:1]), WAIT_S)
        replica.wait(pub.delete_rows("none", KEYS[:1]), WAIT_S)
        assert replica.export_table("none", path) == 0
        pub.import_table("copy", path).durable.result(WAIT_S)
        with pytest.raises(ps.UnknownTopic, match="no such table"):
            replica.export_table("other", path)
        with pytest.raises(ps.InvalidEvent, match="nowhere is no folder"):
            replica.export_table("users", tmp_path / "nowhere" / "users.safetensors")


def test_a_file_that_does_not_fit_the_table_is_refused_before_a_byte_leaves(client: ps.Client, tmp_path: Path) -> None:
    client.create_topic("ads")
    client.create_table("ads", "users", dim=2)
    pub, path = client.publisher("ads", producer="trainer"), tmp_path / "f.safetensors"
    keys, rows = np.arange(3), np.ones((3, 2), np.float32)
    wrong: list[tuple[str, dict[str, npt.NDArray[Any]]]] = [
        ("needs the tensors", {"keys": keys}),
        ("needs the tensors", {"keys": keys.astype(np.int32), "rows": rows}),
        ("float64", {"keys": keys, "rows": rows.astype(np.float64)}),
        ("the table needs", {"keys": keys, "rows": np.ones((3, 3), np.float32)}),
        ("the table needs", {"keys": keys, "rows": rows[:2]}),
    ]
    for message, tensors in wrong:
        safetensors.numpy.save_file(tensors, path)
        with pytest.raises(ps.InvalidEvent, match=message):
            pub.import_table("users", path)
    safetensors.numpy.save_file({"keys": keys, "rows": rows}, path)
    whole = path.read_bytes()
    for data in (b"", whole[:20], whole[:-1], b"\x80\x04N." * 20):
        path.write_bytes(data)
        with pytest.raises(ps.InvalidEvent, match=r"f\.safetensors"):
            pub.import_table("users", path)
    with pytest.raises(ps.InvalidEvent, match="cannot read"):
        pub.import_table("users", tmp_path / "none")
    with pytest.raises(ps.UnknownTopic):
        pub.import_table("other", path)
    path.write_bytes(whole)
    with client.replica("ads") as replica:
        replica.wait(pub.import_table("users", path), WAIT_S)
        assert replica.table("users").rows == 3


def test_an_import_larger_than_the_window_goes_out_piece_by_piece(client: ps.Client, tmp_path: Path) -> None:
    client.create_topic("ads", partitions=2)
    client.create_table("ads", "users", dim=256)
    pub, path = client.publisher("ads", producer="trainer"), tmp_path / "f.safetensors"
    keys = np.concatenate([np.arange(20_000), np.arange(100)])
    rows = np.repeat(np.arange(len(keys), dtype=np.float32)[:, None], 256, axis=1)
    safetensors.numpy.save_file({"keys": keys, "rows": rows}, path)
    receipt = pub.import_table("users", path)
    with client.replica("ads", arrays="numpy") as replica:
        replica.wait(receipt, WAIT_S)
        # The last row of a key that repeats wins, also over pieces of the file.
        expected = np.arange(20_000, dtype=np.float32)
        expected[:100] = np.arange(20_000, 20_100)
        assert (replica.lookup("users", np.arange(20_000))[:, 0] == expected).all()
