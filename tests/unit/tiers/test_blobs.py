"""Blobs: what lies on SSD comes back as it was or not at all, and its bytes are used again once nobody refers to it."""

import errno
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paramstream.errors import CorruptTier, ParamstreamError, StorageFull
from paramstream.tiers.blobs import Blob, Blobs
from paramstream.tiers.spill import TRY_AGAIN_S, Spill, SpillCounts
from paramstream.tiers.ssd import SsdFolder

LIMIT = 1 << 20
PAGE = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SsdFolder]:
    folder = SsdFolder(tmp_path, LIMIT)
    yield folder
    folder.close()


def files_of(folder: SsdFolder) -> list[Path]:
    return sorted(folder.path.glob("*.tier"))


def bytes_on_disk(folder: SsdFolder) -> int:
    return sum(path.stat().st_size for path in files_of(folder))


def test_what_was_written_is_read_and_charged_to_the_folder(folder: SsdFolder) -> None:
    blobs = Blobs(folder)
    values = [bytes([number]) * size for number, size in enumerate((0, 1, 63, 64, 65, 5000, 100_000))]
    written = [blobs.write(value) for value in values]
    assert [blob.read() for blob in written] == values
    assert [blob.nbytes for blob in written] == [len(value) for value in values]
    assert blobs.used_bytes == 64 + 64 + 64 + 64 + 128 + 5056 + 100_032
    assert folder.budget.held == bytes_on_disk(folder) >= blobs.used_bytes


def test_a_freed_place_is_used_again_and_the_last_one_gives_the_file_back(folder: SsdFolder) -> None:
    blobs = Blobs(folder)
    kept = [blobs.write(bytes([number]) * 1000) for number in range(20)]
    held, place = folder.budget.held, kept[7].offset
    kept[7] = blobs.write(b"x")
    gc.collect()
    kept.append(blobs.write(b"y" * 1000))
    assert (kept[-1].offset, folder.budget.held) == (place, held)
    assert kept[-1].read() == b"y" * 1000
    kept.clear()
    blobs.settle()
    assert (blobs.used_bytes, folder.budget.held, files_of(folder)) == (0, 0, [])


def test_what_is_as_large_as_a_file_has_one_of_its_own(tmp_path: Path) -> None:
    folder = SsdFolder(tmp_path, 64 << 20)
    blobs = Blobs(folder)
    small, large = blobs.write(b"small"), blobs.write(os.urandom(9 << 20))
    assert len(files_of(folder)) == 2
    assert large.read()[-5:] != small.read() == b"small"
    del large
    blobs.settle()
    assert len(files_of(folder)) == 1
    assert folder.budget.held < 2 << 20
    folder.close()


def test_a_file_gets_shorter_where_its_end_is_free(tmp_path: Path) -> None:
    folder = SsdFolder(tmp_path, 16 << 20)
    blobs = Blobs(folder)
    kept = [blobs.write(bytes(300_000)) for _ in range(6)]
    held = folder.budget.held
    del kept[1:]
    blobs.settle()
    assert folder.budget.held == bytes_on_disk(folder) < held // 2
    folder.close()


def test_a_full_tier_is_named_with_path_and_bytes_and_takes_more_once_something_goes_K05(folder: SsdFolder) -> None:
    blobs = Blobs(folder)
    kept: list[Blob] = []
    with pytest.raises(StorageFull) as caught:
        while True:
            kept.append(blobs.write(bytes(50_000)))
    assert all(part in str(caught.value) for part in ("ssd", str(folder.path), "bytes more", str(LIMIT)))
    assert len(kept) == 20
    assert folder.budget.held <= LIMIT
    assert all(blob.read() == bytes(50_000) for blob in kept)
    del kept[3]
    kept.append(blobs.write(b"x" * 50_000))
    with pytest.raises(StorageFull):
        blobs.write(bytes(50_000))


def test_a_disk_that_refuses_leaves_nothing_charged_K05(folder: SsdFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    blobs = Blobs(folder)
    for call in ("posix_fallocate", "pwrite"):
        with monkeypatch.context() as full:
            full.setattr(os, call, refuse)
            with pytest.raises(StorageFull, match="No space left on device") as caught:
                blobs.write(b"value")
        assert str(folder.path) in str(caught.value)
        assert blobs.used_bytes == 0
    assert blobs.write(b"value").read() == b"value"


@pytest.mark.parametrize("nbytes", [1, 5000, 9 << 20])
def test_a_flipped_bit_is_told_with_its_place_and_no_wrong_bytes_are_given_K03(tmp_path: Path, nbytes: int) -> None:
    folder = SsdFolder(tmp_path, 64 << 20)
    blobs = Blobs(folder)
    before, damaged, after = blobs.write(b"before"), blobs.write(b"v" * nbytes), blobs.write(b"after")
    file, _, at = damaged.place.partition(", bytes ")
    with Path(file).open("r+b") as handle:
        handle.seek(damaged.offset + nbytes // 2)
        byte = handle.read(1)[0]
        handle.seek(damaged.offset + nbytes // 2)
        handle.write(bytes([byte ^ 4]))
    with pytest.raises(CorruptTier) as caught:
        damaged.read()
    assert f"{file}, bytes {at}" in str(caught.value)
    assert (before.read(), after.read()) == (b"before", b"after")
    folder.close()


def test_a_disk_that_cannot_read_is_told_K03(folder: SsdFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = Blobs(folder).write(b"value")
    os.truncate(files_of(folder)[0], 0)
    with pytest.raises(CorruptTier, match="the file ends at 0"):
        blob.read()

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", refuse)
    with pytest.raises(CorruptTier, match="Input/output error"):
        blob.read()


def test_a_blob_that_outlives_its_store_says_so(folder: SsdFolder) -> None:
    blobs = Blobs(folder)
    blob = blobs.write(b"value")
    blobs.close()
    folder.close()
    with pytest.raises(ParamstreamError, match="closed"):
        blob.read()
    with pytest.raises(ValueError, match="closed"):
        blobs.write(b"value")
    assert blobs.used_bytes == 0


def test_a_failed_spill_is_not_tried_again_at_once_and_its_error_stands_until_one_works_K07(
    folder: SsdFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tries = [100.0], list[int]()

    def refuse(*_: object) -> int:
        tries.append(1)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    spill = Spill(Blobs(folder), lambda: now[0])
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        for _ in range(5):
            assert spill.put(b"value") is None
        assert len(tries) == 1
        assert "No space left" in spill.error
        assert str(folder.path) in spill.hint
        now[0] += TRY_AGAIN_S
        assert spill.put(b"value") is None
        assert len(tries) == 2
    assert spill.put(b"value") is None
    now[0] += TRY_AGAIN_S
    assert spill.put(b"value") is not None
    assert (spill.error, spill.hint) == ("", "")
    assert spill.counts == SpillCounts(failed=2)
