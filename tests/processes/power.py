"""A power failure: the files of a log as the disk may have them, which is at least what its last syncs covered."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from paramstream.eventlog.chain import segment_numbers, segment_path
from paramstream.eventlog.files import Disk
from paramstream.eventlog.marks import EndFile


def cut_back(folder: Path, chance: random.Random | None = None) -> None:
    """Cut each partition's files in a log's `folder` back to what was synced; with `chance`, to anywhere behind that.

    The owner is dead. What a sync covers is read from the partition's own record of its durable end.
    """
    for partition in folder.iterdir():
        if partition.is_dir():
            _cut_partition(partition, chance)


def _cut_partition(folder: Path, chance: random.Random | None) -> None:
    disk = Disk()
    if EndFile.NAME not in disk.names(folder):
        shutil.rmtree(folder)
        return
    file = EndFile(disk, folder, write=False)
    end = file.read()
    file.close()
    assert end is not None, f"the durable end of {folder} cannot be read"
    for number in segment_numbers(disk.names(folder)):
        path = segment_path(folder, number)
        if number > end.number:
            path.unlink()
        elif number == end.number:
            size = path.stat().st_size
            assert size >= end.offset, f"{path} has {size} bytes, and {end.offset} are said to be durable"
            os.truncate(path, end.offset if chance is None else chance.randint(end.offset, size))
