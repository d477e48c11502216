"""A power failure: the files of a log as the disk may have them, which is at least what its syncs covered."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from paramstream.eventlog.chain import segment_numbers, segment_path
from paramstream.eventlog.files import Disk
from paramstream.eventlog.marks import EndFile

from .disk import SyncLedger

BLOCK_BYTES = 512


def cut_back(folder: Path, chance: random.Random | None = None) -> None:
    """Cut each partition's files in a log's `folder` back to what was synced; with `chance`, to anywhere behind that, with some
    blocks of what was not synced still unwritten.

    The owner, whose disk was a `FailingDisk`, is dead.
    """
    ledger = SyncLedger(folder)
    ledger.close()
    for partition in folder.iterdir():
        if not partition.is_dir():
            continue
        if EndFile.NAME not in os.listdir(partition) or _goes(ledger, partition, chance):
            shutil.rmtree(partition)
            continue
        _check_end(ledger, partition)
        for number in segment_numbers(os.listdir(partition)):
            path = segment_path(partition, number)
            if _goes(ledger, path, chance):
                path.unlink()
            else:
                _cut_file(path, ledger.sizes.get(path, 0), chance)


def _goes(ledger: SyncLedger, path: Path, chance: random.Random | None) -> bool:
    """Whether the name is lost: its folder was not synced since it is there."""
    return path.name not in ledger.names.get(path.parent, ()) and (chance is None or chance.random() < 0.5)


def _check_end(ledger: SyncLedger, folder: Path) -> None:
    """What the log calls durable is safe."""
    file = EndFile(Disk(), folder, write=False)
    end = file.read()
    file.close()
    assert end is not None, f"the durable end of {folder} cannot be read"
    if end.offset:
        path = segment_path(folder, end.number)
        assert path.name in ledger.names[folder], f"{path} is called durable, and its name is not synced"
        safe = ledger.sizes[path]
        assert safe >= end.offset, f"{path} has {safe} safe bytes, and {end.offset} are called durable"


def _cut_file(path: Path, safe: int, chance: random.Random | None) -> None:
    size = path.stat().st_size
    assert size >= safe, f"{path} has {size} bytes, and {safe} were synced"
    end = safe if chance is None else chance.randint(safe, size)
    os.truncate(path, end)
    if chance is None or chance.random() < 0.5:
        return
    with path.open("r+b") as file:
        for block in range(safe // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            if chance.random() < 0.3:
                begin = max(safe, block * BLOCK_BYTES)
                file.seek(begin)
                file.write(bytes(min(end, (block + 1) * BLOCK_BYTES) - begin))
