"""Checkpoints on disk: safetensors files, one or a folder of shards with its index, in and out without torch.

Reading maps the files: nothing is copied before somebody looks at a tensor. bf16 and fp8 are `ml_dtypes` arrays. Writing goes
to a file aside, which is synced and renamed, so that a name never shows half a checkpoint.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from ..errors import InvalidEvent
from ..events.arrays import DTYPES, Array, as_numpy, describe, nbytes_of, row_major
from ..events.tensorfile import DTYPE_OF_TAG, Entry, encode_header, in_file_order

WRITE_BYTES = 8 << 20
"""How much is written between two reports of progress."""


def read_checkpoint(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Every tensor of a safetensors file, or of a folder of them with its `*.index.json`, by its name in the file.

    The arrays are read-only views of mapped files and keep them mapped. Raises `InvalidEvent` naming the file for what is no
    whole checkpoint, `OSError` for what cannot be read.
    """
    if not path.is_dir():
        return _read_file(path)
    index = _index_of(path)
    if index is None:
        return _read_file(_only_file(path))
    tensors: dict[str, npt.NDArray[Any]] = {}
    for shard in sorted(set(index.values())):
        found = _read_file(path / shard)
        missing = [name for name, home in index.items() if home == shard and name not in found]
        if missing:
            raise InvalidEvent(f"{path / shard} lacks a tensor that the index names", item=missing[0])
        tensors |= {name: found[name] for name, home in index.items() if home == shard}
    return {name: tensors[name] for name in index}


def write_checkpoint(
    path: Path,
    tensors: Mapping[str, Array],
    metadata: Mapping[str, str],
    progress: Callable[[int], None] = lambda nbytes: None,
) -> int:
    """Writes one safetensors file and returns its bytes; an existing file of that name is replaced as a whole at the end.

    Values are written as logical row-major bytes. Raises `InvalidEvent` for a dtype that the format lacks, `OSError` for what
    cannot be written; then nothing of that name has changed. `progress` is called with the bytes written since the last call.
    """
    described = {name: describe(name, value) for name, value in tensors.items()}
    order = in_file_order(described)
    header, total = encode_header({name: described[name] for name in order}, metadata)
    with _written_aside(path) as file:
        file.write(header)
        for name in order:
            data = row_major(name, tensors[name])
            for at in range(0, len(data), WRITE_BYTES):
                progress(file.write(data[at : at + WRITE_BYTES]))
    return len(header) + total


@contextmanager
def _written_aside(path: Path) -> Generator[BinaryIO]:
    """A new file that takes the name `path` once the block has ended well and its bytes are safe; else it is gone."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read_file(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        # Its own reader judges the file as a whole: lengths, offsets, overlaps, dtypes. It cannot hand out fp8 to numpy,
        # so the tensors are viewed here, where the header, found good, says they are.
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        raise InvalidEvent(f"{path} is not a whole safetensors file: {error}") from error
    with path.open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    begin = 8 + int.from_bytes(mapped[:8], "little")
    header = cast("dict[str, Entry]", json.loads(bytes(mapped[8:begin])))
    header.pop("__metadata__", None)
    in_order = sorted(header, key=lambda name: header[name]["data_offsets"])
    return {name: _view(path, name, header[name], mapped[begin:]) for name in in_order}


def _view(path: Path, name: str, entry: Entry, data: memoryview) -> npt.NDArray[Any]:
    dtype = DTYPE_OF_TAG.get(entry["dtype"])
    if dtype is None:
        raise InvalidEvent(
            f"{path} holds a tensor of dtype {entry['dtype']}, which is not supported",
            item=name,
            remedy=f"Convert it to one of {', '.join(DTYPE_OF_TAG)}",
        )
    shape = tuple(entry["shape"])
    try:
        nbytes_of(dtype, shape)
    except InvalidEvent as error:
        raise InvalidEvent(f"{path} holds a tensor that cannot be: {error.problem}", item=name) from error
    start, end = entry["data_offsets"]
    # numpy takes no view of nothing.
    return as_numpy(data[start:end], dtype, shape) if end > start else np.empty(shape, DTYPES[dtype])


def _index_of(folder: Path) -> dict[str, str] | None:
    """Tensor name → file name, as the folder's index says; None where there is no index."""
    found = sorted(folder.glob("*.safetensors.index.json")) or sorted(folder.glob("*.index.json"))
    if not found:
        return None
    if len(found) > 1:
        raise InvalidEvent(f"{folder} holds several indexes: {', '.join(path.name for path in found)}")
    try:
        content: Any = json.loads(found[0].read_text(encoding="utf-8"))
        index = {str(name): str(home) for name, home in content["weight_map"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidEvent(f"{found[0]} is no index of shards: it needs a weight_map from tensor to file") from error
    # An index names files beside it, and nothing else on this machine.
    stray = [home for home in index.values() if Path(home).name != home or not home.isprintable() or home in ("", "..")]
    if stray:
        raise InvalidEvent(f"{found[0]} names a file outside its folder, or none", item=repr(stray[0][:64]))
    return index


def _only_file(folder: Path) -> Path:
    files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        raise InvalidEvent(
            f"{folder} holds {len(files)} safetensors files and no *.index.json that says which belong together",
            remedy="Name one file, or add the index",
        )
    return files[0]
