"""Opens the log that a URL names."""

from __future__ import annotations

from pathlib import Path

from ..errors import InvalidEvent
from ..tiers.sizes import parse_size
from .changelog import Changelogs
from .kafka.changelog import KafkaChangelogs
from .kafka.log import DEFAULT_LIMIT as KAFKA_LIMIT
from .kafka.log import KafkaEventLog
from .kafka.settings import KafkaLog
from .local import DEFAULT_LIMIT as LOCAL_LIMIT
from .local import LocalLog
from .log import EventLog
from .memory import DEFAULT_LIMIT as MEMORY_LIMIT
from .memory import MemoryLog

_FORMS = 'A log is "memory:", "file:DIR" or "kafka://HOST:PORT[,HOST:PORT]"'


def open_log(where: str | KafkaLog, limit: int | str | None = None) -> EventLog:
    """The log at the URL "memory:", "file:DIR" or "kafka://HOST:PORT[,HOST:PORT]", or of the Kafka that the settings name.

    It holds at most `limit`: bytes, or a text such as "4GiB" (None: the default of its kind). Over Kafka that is counted for
    the partitions that are open here.

    Raises `InvalidEvent` where the URL, a setting or the limit cannot be used, `BindFailed` where the folder is held or cannot
    be made, `CorruptLog` where it holds something else, `ConnectFailed` where no Kafka answers.
    """
    nbytes = None if limit is None else _limit_of(limit)
    if isinstance(where, KafkaLog):
        return KafkaEventLog(where, KAFKA_LIMIT if nbytes is None else nbytes)
    url = where
    kind, colon, place = url.partition(":")
    if kind == "memory" and colon and not place:
        return MemoryLog(MEMORY_LIMIT if nbytes is None else nbytes)
    if kind == "file" and place:
        return LocalLog(folder_of(url), LOCAL_LIMIT if nbytes is None else nbytes)
    if kind == "kafka" and place.startswith("//"):
        return open_log(KafkaLog.from_url(url), limit)
    raise InvalidEvent(f"not the URL of a log: {url!r}", item=url, remedy=_FORMS)


def open_changelogs(settings: bytes) -> Changelogs:
    """The changelogs of a log that another process has open, as `SharedLog.changelogs` told of it.

    Raises `ConnectFailed` where no Kafka answers.
    """
    return KafkaChangelogs(KafkaLog.decode(settings))


def _limit_of(limit: int | str) -> int:
    try:
        nbytes = parse_size(limit)
    except ValueError as error:
        raise InvalidEvent(f"the limit of a log: {error}", item="log_limit") from error
    if not nbytes:
        raise InvalidEvent("the limit of a log must be above 0 bytes", item="log_limit")
    return nbytes


def folder_of(url: str) -> Path:
    """The folder of a "file:DIR" URL; `file:///DIR` is taken too. Raises `InvalidEvent` for another kind of URL."""
    kind, _, place = url.partition(":")
    if kind != "file" or not place:
        raise InvalidEvent(f"not the URL of a log in a folder: {url!r}", item=url, remedy='Give "file:DIR"')
    if place.startswith("//"):
        place = place[2:]
        if not place.startswith("/"):
            raise InvalidEvent(f"a file URL names no other machine: {url!r}", item=url, remedy='Give "file:DIR"')
    return path_of(place)


def path_of(place: str) -> Path:
    """A path as people write it, with `~`. Raises `InvalidEvent` where none can have that name."""
    if "\0" in place:
        raise InvalidEvent(f"no path has a zero byte in it: {place!r}", item=repr(place))
    try:
        return Path(place).expanduser()
    except RuntimeError as error:
        raise InvalidEvent(f"not a path: {place!r}: {error}", item=place) from error
