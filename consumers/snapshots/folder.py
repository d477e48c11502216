"""Where snapshots lie: the folder of a topic, its numbered snapshots, and the one that is the latest."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from ...errors import CorruptLog, UnknownTopic
from ...events import manifest as manifests
from ...events.manifest import Manifest, decode_manifest

LATEST = "latest"
_SNAPSHOT = re.compile(r"snapshot-([0-9]{8,20})")
_TOPIC = re.compile(r".*-([0-9a-f]{16})")
_NAME_LETTERS = 80
"""Of a topic's name in its folder's: names may be longer than a file system's."""


def topic_folder(root: Path, name: str, topic_id: int) -> Path:
    """The folder of a topic in a folder of snapshots."""
    return root / f"{quote(name, safe='')[:_NAME_LETTERS]}-{topic_id:016x}"


def topic_folders(root: Path) -> list[Path]:
    """The folders of all topics in `root`, sorted; `root` itself where it is one."""
    try:
        children = sorted(child for child in root.iterdir() if child.is_dir())
    except OSError as error:
        raise CorruptLog(f"{root} is no folder of snapshots: {error.strerror}", item=str(root)) from error
    if any(_SNAPSHOT.fullmatch(child.name) for child in children):
        return [root]
    return [child for child in children if _TOPIC.fullmatch(child.name)]


def find_topic(root: Path, name: str) -> Path:
    """The folder of the topic of that name; of several with it, one after another, that with the newest snapshot.

    Raises `UnknownTopic` that names those there are, `CorruptLog` where `root` is no folder.
    """
    found: dict[str, tuple[int, Path]] = {}
    for folder in topic_folders(root):
        for path in in_order(folder):
            try:
                manifest, _ = read_manifest(path)
            except CorruptLog:
                continue
            found[manifest.topic] = max(found.get(manifest.topic, (0, folder)), (manifest.time, folder))
            break
    if name in found:
        return found[name][1]
    # Whose manifests are all damaged is still to be found, and told so.
    prefix = quote(name, safe="")[:_NAME_LETTERS] + "-"
    damaged = [folder for folder in topic_folders(root) if folder.name[:-16] == prefix and in_order(folder)]
    if damaged:
        return damaged[0]
    known = ", ".join(sorted(found)) or "none"
    raise UnknownTopic(f"{root} holds no snapshot of {name!r}", topic=name, remedy=f"There are: {known}")


def snapshot_path(folder: Path, number: int) -> Path:
    return folder / f"snapshot-{number:08d}"


def numbers_in(names: list[str]) -> list[int]:
    """The numbers of the whole snapshots among a topic folder's names, in order."""
    return sorted(int(match[1]) for name in names if (match := _SNAPSHOT.fullmatch(name)))


def in_order(folder: Path) -> list[Path]:
    """The snapshots of a topic's folder, in the order in which they are to be used: the latest first, then the newest.

    A `latest` that is damaged or gone is passed over: what has its final name is whole.
    """
    try:
        newest_first = [snapshot_path(folder, n) for n in reversed(numbers_in([p.name for p in folder.iterdir()]))]
    except OSError:
        return []
    latest = latest_in(folder)
    return newest_first if latest is None else [latest, *(path for path in newest_first if path != latest)]


def latest_in(folder: Path) -> Path | None:
    """What `latest` names, if it names a snapshot."""
    try:
        name = (folder / LATEST).read_bytes()[:64].decode("ascii", "replace").strip()
    except OSError:
        return None
    path = folder / name
    return path if _SNAPSHOT.fullmatch(name) and path.is_dir() else None


def read_manifest(path: Path) -> tuple[Manifest, str]:
    """The manifest of the snapshot in `path`, and its digest. Raises `CorruptLog` that names the file."""
    place = path / manifests.NAME
    try:
        if place.stat().st_size > manifests.MAX_MANIFEST_BYTES:
            raise CorruptLog(f"{place} is no manifest of a snapshot: it is far too large", item=str(place))
        data = place.read_bytes()
    except OSError as error:
        raise CorruptLog(f"cannot read {place}: {error.strerror}", item=str(place)) from error
    return decode_manifest(data, str(place))
