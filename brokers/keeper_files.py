"""The folder of a broker's keeper, as the fetch thread gives it to replicas: files of announced snapshots, and nothing else.

No path comes from a client. A client names a topic, a partition, the digest of an announced manifest and the number of a file in
it; where those lie was announced by the keeper, in a form that cannot lead out of its folder, and is checked once more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from ..errors import BindFailed, CorruptLog, LogTruncated
from ..events import manifest as manifests
from ..events.manifest import Manifest, decode_manifest
from ..transport.calls import AnnouncedSnapshot
from ..transport.messages import FetchFile
from .meta import PLACE

MAX_PIECE_BYTES = 16 * 1024 * 1024
"""One answer, whatever the client asks for."""

_IDENTITY = re.compile(r"[0-9a-f]{32}")


def identity_of(folder: Path) -> str:
    """What names the keeper of this folder, now and after a restart. Makes the folder where there is none.

    Raises `BindFailed` where it cannot be used.
    """
    path = folder / "keeper"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            aside = folder / f".keeper.{os.getpid()}.partial"
            aside.write_text(uuid4().hex, encoding="ascii")
            aside.rename(path)
        identity = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BindFailed(f"{folder} cannot be the folder of a keeper: {error}", item=str(folder)) from error
    if not _IDENTITY.fullmatch(identity):
        raise BindFailed(
            f"{path} does not name a keeper", item=str(path), remedy="Use another folder, or remove the file"
        )
    return identity


class KeeperFiles:
    """Belongs to the fetch thread. `announced` gives the snapshots of a topic that are announced, oldest first."""

    def __init__(self, folder: Path, announced: Callable[[int], list[AnnouncedSnapshot]]) -> None:
        self._folder = folder
        self._announced = announced
        self._manifest: tuple[str, Manifest] | None = None
        """The one that was read last, by its digest."""

    def read(self, ask: FetchFile) -> tuple[bytes, int]:
        """(the piece asked for, the bytes of the whole file). Raises `LogTruncated` where there is no such snapshot (any more),
        `CorruptLog` where it is damaged.
        """
        snapshot = self._find(ask)
        path = self._folder / snapshot.place
        name = manifests.NAME if ask.file < 0 else self._file_name(path, snapshot, ask)
        try:
            handle = os.open(path / name, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                size = os.fstat(handle).st_size
                piece = os.pread(handle, min(max(0, ask.max_bytes), MAX_PIECE_BYTES), min(max(0, ask.offset), size))
            finally:
                os.close(handle)
        except FileNotFoundError as error:
            raise self._gone(ask) from error
        except OSError as error:
            raise CorruptLog(f"cannot read {path / name}: {error.strerror}", partition=ask.partition) from error
        return piece, size

    def _find(self, ask: FetchFile) -> AnnouncedSnapshot:
        snapshots = [
            snapshot
            for snapshot in self._announced(ask.topic)
            if PLACE.fullmatch(snapshot.place) and any(number == ask.partition for number, _, _ in snapshot.partitions)
        ]
        if ask.digest:
            snapshots = [snapshot for snapshot in snapshots if snapshot.digest == ask.digest]
        else:
            snapshots = snapshots[: len(snapshots) - max(0, ask.skip)]
        if not snapshots:
            raise self._gone(ask)
        return snapshots[-1]

    def _file_name(self, path: Path, snapshot: AnnouncedSnapshot, ask: FetchFile) -> str:
        if self._manifest is None or self._manifest[0] != snapshot.digest:
            place = path / manifests.NAME
            try:
                manifest, digest = decode_manifest(place.read_bytes(), str(place))
            except FileNotFoundError as error:
                raise self._gone(ask) from error
            except OSError as error:
                raise CorruptLog(f"cannot read {place}: {error.strerror}", partition=ask.partition) from error
            if digest != snapshot.digest:
                raise CorruptLog(f"{place} is not the manifest that was announced", partition=ask.partition)
            self._manifest = digest, manifest
        state = self._manifest[1].state_of(ask.partition)
        files = [] if state is None else state.all_files()
        if ask.file >= len(files):
            raise self._gone(ask)
        return files[ask.file].name

    def _gone(self, ask: FetchFile) -> LogTruncated:
        return LogTruncated(
            "this broker's keeper holds no such snapshot of the partition",
            partition=ask.partition,
            remedy="Begin again: the keeper may have made a newer one",
        )
