"""State at rest: snapshots with their manifest, pages and weights, a processor's snapshots, a keeper's name, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import xxhash
from safetensors.numpy import save

import paramstream as ps
from feeding.fakes import FakeBroker
from feeding.rows import table_of, write_gradients
from fuzzing import sealing
from fuzzing.examples import joined, split
from fuzzing.log import folder
from fuzzing.target import Target
from paramstream.brokers.keeper_files import identity_of
from paramstream.cli.checkpoints import read_checkpoint, write_checkpoint
from paramstream.consumers.processors.files import Origin, SnapshotFolder
from paramstream.consumers.processors.state import decode_state, encode_state
from paramstream.consumers.replica import Replica
from paramstream.consumers.snapshots.entry_pages import decode_page, encode_page
from paramstream.consumers.snapshots.folder import in_order, topic_folder, topic_folders
from paramstream.consumers.snapshots.row_pages import decode_rows, encode_rows
from paramstream.consumers.time_marks import TimeMarks, decode_marks, encode_marks
from paramstream.errors import BindFailed, CorruptLog, InvalidEvent, ParamstreamError
from paramstream.events.codec import decode_vector, encode_vector
from paramstream.events.digest import checksum
from paramstream.events.manifest import decode_manifest, digest_of, encode_manifest, vector_of
from paramstream.events.tensorfile import decode_header, encode_header
from paramstream.producers.table_files import TableFile
from paramstream.tiers.entries import Entry

# --- snapshots ----------------------------------------------------------------------------------------------------------


TABLE = table_of("users")


@cache
def snapshot_files() -> dict[str, bytes]:
    """The files of a snapshot of a topic with weights, entries and rows, as a replica wrote them; those of rows come last."""
    broker = FakeBroker()
    broker.state.write(TABLE)
    write_gradients(broker.state, TABLE, [1, -1, 5], 1)
    broker.state.put(b"key", b"value", 10**12)
    broker.state.put(b"other", b"")
    tensors = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "empty": np.zeros((0, 4), np.float32)}
    broker.weights.version(7, tensors, tied={"tied": "w"})
    broker.durable = {place: writer.position for place, writer in broker.writers.items()}
    with (
        folder() as name,
        Replica(["model"], directory=broker.directory, make_link=broker.make_link, timeout=2.0, arrays="numpy") as made,
    ):
        broker.settle()
        broker.beat()
        made.snapshot(name)
        (topic,) = topic_folders(Path(name))
        written = sorted(in_order(topic)[0].iterdir(), key=lambda file: (file.name.startswith("rows"), file.name))
        return {file.name: file.read_bytes() for file in written}


def inner_manifest() -> bytes:
    return json.dumps(json.loads(snapshot_files()["manifest.json"])["manifest"]).encode()


def manifest(data: bytes) -> None:
    """One whose digest is right: what it says can be used as it is, or it is refused."""
    found, digest = decode_manifest(sealing.manifest(data), "a manifest")
    again, named = encode_manifest(found)
    assert decode_manifest(again, "again") == (found, named)
    assert digest == digest_of(data)
    sealed = found.weights.sealed
    for positions in (found.context, *((sealed.vector, sealed.needs) if sealed is not None else ())):
        vector = vector_of(positions)
        assert decode_vector(encode_vector(vector)) == vector
    if found.weights.sealed is not None:
        for tensor in found.weights.sealed.tensors:
            tensor.spec()


def raw_manifest(data: bytes) -> None:
    decode_manifest(data, "a manifest")


def snapshot(data: bytes) -> None:
    """A folder that holds a snapshot whose digests are right, whatever it says: it is restored, or refused.

    Pieces: the inner manifest, the page, the weights, the rows; what lacks is as it was written.
    """
    pieces, written = split(data, 4), snapshot_files()
    names = [name for name in written if name != "manifest.json"]
    contents = dict(zip(names, pieces[1:], strict=False))
    files = {name: contents.get(name) or content for name, content in written.items()}
    inner = _with_digests(pieces[0] if pieces and pieces[0] else inner_manifest(), files)
    with folder() as name:
        root = topic_folder(Path(name), "model", 77)
        held = root / "snapshot-00000001"
        held.mkdir(parents=True)
        for file in names:
            (held / file).write_bytes(files[file])
        (held / "manifest.json").write_bytes(sealing.manifest(inner))
        (root / "latest").write_text("snapshot-00000001\n")
        with ps.TieredStore(dram="1MiB") as store, ps.restore(f"snapshot:{name}", "model", store=store) as restored:
            restored.get("key")
            if restored.status().served:
                assert set(restored.weights())
            restored.digest()


def _with_digests(inner: bytes, files: dict[str, bytes]) -> bytes:
    """The manifest as it would be if those files were meant."""
    try:
        content = json.loads(inner)
    except (ValueError, RecursionError):
        return inner
    for record in _records(content):
        held = files.get(record["name"]) if isinstance(record.get("name"), str) else None
        if held is not None:
            record |= {"nbytes": len(held), "digest": digest_of(held)}
    return json.dumps(content).encode()


def _records(content: Any) -> Iterable[dict[str, Any]]:
    """Every object in it."""
    if isinstance(content, dict):
        yield cast("dict[str, Any]", content)
        content = list(cast("dict[str, Any]", content).values())
    for each in cast("Iterable[Any]", content if isinstance(content, list) else ()):
        yield from _records(each)


def snapshots() -> Iterable[bytes]:
    written = snapshot_files()
    yield joined([inner_manifest(), *(data for name, data in written.items() if name != "manifest.json")])
    yield joined([inner_manifest()])


def page(data: bytes) -> None:
    found = list(decode_page(memoryview(data), "a page"))
    again = b"".join(encode_page(found))
    assert list(decode_page(memoryview(again), "again")) == found


def pages() -> Iterable[bytes]:
    yield b"".join(
        encode_page([(b"key", Entry(b"value", 5 << 28, 10**18, (7, 3))), (b"other", Entry(b"", 5 << 28 | 1))])
    )
    yield b"".join(encode_page([]))


def row_page(data: bytes) -> None:
    found = decode_rows(memoryview(data), TABLE, "a page")
    again = b"".join(encode_rows(found, TABLE))
    once_more = decode_rows(memoryview(again), TABLE, "again")
    for name in ("keys", "values", "state", "positions"):
        assert getattr(once_more, name).tobytes() == getattr(found, name).tobytes()


def time_marks(data: bytes) -> None:
    """Marks whose digest is right: they are as they were saved, or refused."""
    found = decode_marks(xxhash.xxh3_64_digest(data) + data, 77, "marks")
    again = decode_marks(encode_marks(77, found), 77, "again")
    assert {number: each.kept for number, each in again.items()} == {n: each.kept for n, each in found.items()}
    for marks in found.values():
        assert marks.older(-1) == 0
        marks.look(1 << 40, 1 << 40)
        marks.look((1 << 40) + 1, (1 << 40) + 1)


def saved_marks() -> Iterable[bytes]:
    marks = TimeMarks()
    for at in range(1, 200):
        marks.look(at, 10**9 * at)
    yield encode_marks(77, {0: marks, 1: TimeMarks()})[8:]


def table_file(data: bytes) -> None:
    """A file that a user imports: rows of the table, or refused."""
    with folder() as name:
        path = Path(name) / "f.safetensors"
        path.write_bytes(data)
        file = TableFile(path, TABLE)
        assert sum(len(keys) for keys, _ in file.pieces()) == len(file)
        assert all(0 <= number < 3 for number in file.partitions(3))


def table_files() -> Iterable[bytes]:
    keys, rows = np.arange(4), np.ones((4, 3), np.float32)
    yield save({"keys": keys, "rows": rows})
    yield save({"rows": rows, "keys": keys, "state": np.zeros((4, 7), np.float32)})


def tensor_header(data: bytes) -> None:
    """Every tensor lies in the file, and is as long as its shape says."""
    found = decode_header(memoryview(data), "a file")
    for at in found.values():
        assert len(data[at.start : at.end]) == at.end - at.start
    try:
        header, _ = encode_header({name: (at.dtype, at.shape) for name, at in found.items()}, {})
    except InvalidEvent:
        return
    assert header


# --- processors and keepers ---------------------------------------------------------------------------------------------

ORIGIN = Origin("adder/0", 77, "grads", 0)
STATE: dict[Any, Any] = {
    "step": 7, b"sum": 0.5, 3: [1, (2, b"x")], "none": None, "text": "ä", "buffer": bytearray(b"ab"), "nested": {"a": {"b": [True]}},
    "array": np.arange(6, dtype=np.float32).reshape(2, 3), "columns": np.asfortranarray(np.ones((2, 3))), "scalar": np.float64(2),
}  # fmt: skip


def processor_state(data: bytes) -> None:
    """Tree and bulk. What is read is a state that would be written just so again."""
    tree, bulk = (*split(data, 2), b"", b"")[:2]
    found = decode_state(tree, memoryview(bulk))
    once = encode_state(found)
    again = encode_state(decode_state(once.tree, memoryview(b"".join(once.bulk))))
    assert again == once


def states() -> Iterable[bytes]:
    for state in (STATE, {}):
        made = encode_state(state)
        yield joined([made.tree, b"".join(made.bulk)])


def processor_file(data: bytes) -> None:
    """A task's newest snapshot, as it is and with its checksum right."""
    for content in (data, data[:8] + _checksum(data[16:]) + data[16:]):
        with folder() as name:
            SnapshotFolder(Path(name), ORIGIN)
            Path(name, "0", f"{7:016x}.snapshot").write_bytes(content)
            loaded = SnapshotFolder(Path(name), ORIGIN).load()
            assert loaded is not None


def _checksum(data: bytes) -> bytes:
    return checksum(data).to_bytes(8, "little")


def processor_files() -> Iterable[bytes]:
    for state in (STATE, {}):
        with folder() as name:
            SnapshotFolder(Path(name), ORIGIN).save(7, encode_state(state), "writer")
            (file,) = Path(name, "0").iterdir()
            yield file.read_bytes()


def state_names(data: bytes) -> None:
    """Files of any name in the folders of a task and of a topic's snapshots, and what `latest` says."""
    latest, *names = data.split(b"\n")
    with folder() as name:
        tasks, topic = Path(name, "0"), Path(name, f"model-{77:016x}")
        for place in (tasks, topic):
            place.mkdir()
            for each in names[:8]:
                if 0 < len(each) < 200 and b"/" not in each and b"\0" not in each and each not in (b".", b".."):
                    (place / each.decode(errors="surrogateescape")).write_bytes(b"")
        (topic / "latest").write_bytes(latest)
        topic_folders(Path(name))
        in_order(topic)
        held = SnapshotFolder(Path(name), ORIGIN)
        assert held.oldest is None or held.oldest >= 0
        held.load()


def keeper(data: bytes) -> None:
    with folder() as name:
        Path(name, "keeper").write_bytes(data)
        assert len(identity_of(Path(name))) == 32


# --- checkpoints --------------------------------------------------------------------------------------------------------


def checkpoint(data: bytes) -> None:
    """A safetensors file of somebody else: what is read can be written, and is read again as it was."""
    with folder() as name:
        path, again = Path(name, "model.safetensors"), Path(name, "again.safetensors")
        path.write_bytes(data)
        found = read_checkpoint(path)
        write_checkpoint(again, found, {})
        for key, array in read_checkpoint(again).items():
            assert (array.dtype, array.shape, array.tobytes()) == (
                found[key].dtype, found[key].shape, found[key].tobytes()
            )  # fmt: skip


def checkpoints() -> Iterable[bytes]:
    with folder() as name:
        path = Path(name, "model.safetensors")
        arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.int8), "e": np.zeros((0, 4))}
        write_checkpoint(path, arrays, {"format": "pt"})
        yield path.read_bytes()
    yield snapshot_files()[next(file for file in snapshot_files() if file.startswith("weights"))]


def shards(data: bytes) -> None:
    """An index of shards: it names files beside it, which hold what it says, or it is refused."""
    with folder() as name:
        place = Path(name, "checkpoint")
        place.mkdir()
        (place / "model.safetensors").write_bytes(next(iter(checkpoints())))
        (place / "model.safetensors.index.json").write_bytes(data)
        assert set(read_checkpoint(place)) <= {"w", "b", "e"}


def indices() -> Iterable[bytes]:
    yield json.dumps({"metadata": {}, "weight_map": dict.fromkeys("wbe", "model.safetensors")}).encode()


TARGETS = (
    Target("manifest", manifest, lambda: [inner_manifest()]),
    Target("manifest-raw", raw_manifest, lambda: [snapshot_files()["manifest.json"]]),
    Target("snapshot", snapshot, snapshots, errors=(ParamstreamError,), fixed_bytes=32 << 20),
    Target("entries-page", page, pages),
    Target("rows-page", row_page, lambda: [snapshot_files()["rows-0-0-0000.safetensors"]]),
    Target("tensor-header", tensor_header, checkpoints),
    Target("time-marks", time_marks, saved_marks),
    Target("table-file", table_file, table_files, errors=(InvalidEvent,)),
    Target("processor-state", processor_state, states, errors=(CorruptLog, InvalidEvent)),
    Target("processor-file", processor_file, processor_files),
    Target("state-names", state_names, lambda: [b"snapshot-00000001\nsnapshot-00000001\n0000000000000007.snapshot\nx"]),
    Target("keeper-identity", keeper, lambda: [b"0123456789abcdef" * 2], errors=(BindFailed,)),
    Target("checkpoint", checkpoint, checkpoints, errors=(InvalidEvent,)),
    Target("shard-index", shards, indices, errors=(InvalidEvent, OSError)),
)
