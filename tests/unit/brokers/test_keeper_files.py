"""What a broker gives of its keeper's folder: files of announced snapshots, and nothing else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from paramstream.brokers.keeper_files import KeeperFiles, identity_of
from paramstream.brokers.meta import MetaState
from paramstream.errors import BindFailed, CorruptLog, InvalidEvent, LogTruncated, UnknownTopic
from paramstream.events.manifest import FileRecord, Manifest, StateRecord, WeightsRecord, digest_of, encode_manifest
from paramstream.transport.calls import AnnouncedSnapshot, AnnounceSnapshots, TopicRecord
from paramstream.transport.messages import FetchFile

TOPIC = TopicRecord("model", 77, 2, "write_back", 8)
FOLDER = "model-000000000000004d"
CONTENT = bytes(range(200))


def snapshot(root: Path, number: int) -> AnnouncedSnapshot:
    """A snapshot of state partition 0 in the keeper's folder, as it is announced."""
    path = root / FOLDER / f"snapshot-{number:08d}"
    path.mkdir(parents=True)
    file = FileRecord("state-0-0000.safetensors", len(CONTENT), digest_of(CONTENT))
    (path / file.name).write_bytes(CONTENT)
    state = StateRecord(0, 5, 6, 1, (file,))
    data, digest = encode_manifest(
        Manifest("model", 77, 2, "write_back", 8, number, 1, "r", (), (state,), WeightsRecord(2, 0, 0))
    )
    (path / "manifest.json").write_bytes(data)
    return AnnouncedSnapshot(f"{FOLDER}/{path.name}", digest, ((0, 5, 6),))


def ask(digest: str = "", file: int = -1, offset: int = 0, most: int = 1 << 20, partition: int = 0) -> FetchFile:
    return FetchFile(1, 77, partition, digest, file, offset, most)


@pytest.fixture
def held(tmp_path: Path) -> list[AnnouncedSnapshot]:
    return [snapshot(tmp_path, 1), snapshot(tmp_path, 2)]


def test_the_newest_manifest_and_its_files_are_given_piece_by_piece(
    held: list[AnnouncedSnapshot], tmp_path: Path
) -> None:
    files = KeeperFiles(tmp_path, lambda topic: held)
    newest = tmp_path / held[1].place
    assert files.read(ask()) == ((newest / "manifest.json").read_bytes(), (newest / "manifest.json").stat().st_size)
    assert files.read(ask(held[1].digest, 0, 150, 20)) == (CONTENT[150:170], 200)
    assert files.read(ask(held[0].digest, 0, 190, 1 << 40)) == (CONTENT[190:], 200)
    assert files.read(ask(held[0].digest, 0, 1 << 60)) == (b"", 200)
    assert files.read(ask(held[0].digest, 0, -5, -5)) == (b"", 200)


def test_one_that_was_found_to_be_damaged_is_passed_over(held: list[AnnouncedSnapshot], tmp_path: Path) -> None:
    files = KeeperFiles(tmp_path, lambda topic: held)
    older = (tmp_path / held[0].place / "manifest.json").read_bytes()
    assert files.read(FetchFile(1, 77, 0, "", -1, 0, 1 << 20, 1))[0] == older
    with pytest.raises(LogTruncated):
        files.read(FetchFile(1, 77, 0, "", -1, 0, 1 << 20, 2))


@pytest.mark.parametrize(
    "place",
    [
        "../etc",
        "/etc/passwd",
        f"{FOLDER}/../../secret",
        f"{FOLDER}/snapshot-00000001/..",
        f"../{FOLDER}/snapshot-00000001",
    ],
)
def test_no_place_leads_out_of_the_folder(place: str, held: list[AnnouncedSnapshot], tmp_path: Path) -> None:
    stray = AnnouncedSnapshot(place, held[0].digest, ((0, 5, 6),))
    with pytest.raises(LogTruncated):
        KeeperFiles(tmp_path, lambda topic: [stray]).read(ask())
    with pytest.raises(InvalidEvent):
        meta().announce(AnnounceSnapshots(77, "keeper", (stray,)))


def test_what_is_not_announced_or_is_gone_is_not_given(held: list[AnnouncedSnapshot], tmp_path: Path) -> None:
    files = KeeperFiles(tmp_path, lambda topic: held if topic == 77 else [])
    for each in (ask("0" * 32, 0), ask(partition=1), ask(held[0].digest, 1), FetchFile(1, 78, 0, "", -1, 0, 9)):
        with pytest.raises(LogTruncated):
            files.read(each)
    (tmp_path / held[0].place / "state-0-0000.safetensors").unlink()
    with pytest.raises(LogTruncated):
        files.read(ask(held[0].digest, 0))


def test_a_link_in_the_place_of_a_file_is_not_followed(held: list[AnnouncedSnapshot], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    path = tmp_path / held[0].place / "state-0-0000.safetensors"
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(CorruptLog):
        KeeperFiles(tmp_path, lambda topic: held).read(ask(held[0].digest, 0))


def test_another_manifest_than_the_announced_one_gives_no_file(held: list[AnnouncedSnapshot], tmp_path: Path) -> None:
    (tmp_path / held[0].place / "manifest.json").write_bytes((tmp_path / held[1].place / "manifest.json").read_bytes())
    with pytest.raises(CorruptLog, match="announced"):
        KeeperFiles(tmp_path, lambda topic: held).read(ask(held[0].digest, 0))


def test_a_keeper_is_known_by_its_folder(tmp_path: Path) -> None:
    identity = identity_of(tmp_path / "new")
    assert identity_of(tmp_path / "new") == identity != identity_of(tmp_path / "other")
    (tmp_path / "new" / "keeper").write_text("something else")
    with pytest.raises(BindFailed, match="keeper"):
        identity_of(tmp_path / "new")


def meta() -> MetaState:
    return MetaState({b"topic/model": msgspec.msgpack.encode(TOPIC)})


def test_what_a_keeper_announces_takes_the_place_of_what_it_announced_before() -> None:
    announced = AnnouncedSnapshot(f"{FOLDER}/snapshot-00000003", "d" * 32, ((0, 5, 6), (1, 7, 7)))
    entry = meta().announce(AnnounceSnapshots(77, "keeper", (announced,)))
    (item,) = entry.payload.items  # type: ignore[union-attr]
    state = MetaState({item.key: entry.bulk[0]})
    assert state.snapshots(77, "keeper") == [announced] and state.snapshots(77, "other") == []
    assert state.snapshots(78, "keeper") == []


@pytest.mark.parametrize("span", [(2, 0, 1), (-1, 0, 1), (0, 6, 5), (0, -1, 5)])
def test_an_announcement_that_cannot_be_is_refused(span: tuple[int, int, int]) -> None:
    announced = AnnouncedSnapshot(f"{FOLDER}/snapshot-00000003", "d" * 32, (span,))
    with pytest.raises(InvalidEvent):
        meta().announce(AnnounceSnapshots(77, "keeper", (announced,)))
    with pytest.raises(UnknownTopic):
        meta().announce(AnnounceSnapshots(78, "keeper", ()))
