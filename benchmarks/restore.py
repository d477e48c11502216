"""GB/s at which a local log is restored from a cold page cache, beside a plain sequential read of the same files."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import paramstream as ps

from .processes import medians

TOPIC = "restored"
TENSORS = 16
READ_NBYTES = 4 * 1024 * 1024
ENTRY_NBYTES = 1024


def run(quick: bool = False) -> dict[str, object]:
    """Weights (one version), and entries of 1 KiB: bytes of the log's files per second, and the ratio to reading them.

    Each round drops the files from the page cache first, for the plain read and for the restore. Medians of the rounds.
    """
    rounds, nbytes = (2, 64 * 2**20) if quick else (5, 512 * 2**20)
    results: dict[str, object] = {}
    for name, write in (("weights", _write_weights), ("entries", _write_entries)):
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            _fill(folder, write, nbytes if name == "weights" else nbytes // 8)
            for figure, value in medians([_round(Path(folder)) for _ in range(rounds)]).items():
                results[f"{name}_{figure}"] = value
    return results


def _fill(folder: str, write: Callable[[ps.Publisher, int], None], nbytes: int) -> None:
    with ps.Broker(log=f"file:{folder}") as broker, ps.connect(broker.endpoint) as client:
        client.create_topic(TOPIC)
        with client.publisher(TOPIC, producer="writer") as publisher:
            write(publisher, nbytes)
            publisher.flush(300.0)


def _write_weights(publisher: ps.Publisher, nbytes: int) -> None:
    generator = np.random.default_rng(1)
    weights = {f"layer.{n}": generator.random(nbytes // TENSORS // 4, np.float32) for n in range(TENSORS)}
    publisher.publish_weights(weights, 1)


def _write_entries(publisher: ps.Publisher, nbytes: int) -> None:
    for at in range(0, nbytes // ENTRY_NBYTES, 256):
        publisher.put_many({f"key-{at + n}": os.urandom(ENTRY_NBYTES) for n in range(256)})


def _round(folder: Path) -> dict[str, float]:
    files = sorted(folder.glob("*/*.segment"))
    nbytes = sum(path.stat().st_size for path in files)
    _forget(files)
    theirs = nbytes / _read(files) / 1e9
    _forget(files)
    began = time.perf_counter()
    replica = ps.restore(f"file:{folder}", TOPIC, arrays="numpy")
    ours = nbytes / (time.perf_counter() - began) / 1e9
    replica.close()
    return {"gb_per_s": ours, "read_gb_per_s": theirs, "to_read": ours / theirs}


def _read(files: list[Path]) -> float:
    """Seconds for all bytes of the files, one after the other."""
    buffer = bytearray(READ_NBYTES)
    began = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - began


def _forget(files: list[Path]) -> None:
    """Drop what is clean of them from the page cache."""
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
