"""Asks Kafka from another thread, and tells what goes wrong in the library's own errors."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from ...errors import AccessDenied, ConnectFailed, CorruptLog
from .scan import Place
from .thread import KafkaThread
from .wire import OutOfRange, Refused, TopicUnknown, Trouble

T = TypeVar("T")


def ask(place: Place, thread: KafkaThread, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """What the coroutine returns, done in the Kafka thread. Blocks.

    Raises `ConnectFailed` where Kafka is in trouble, `AccessDenied` where it refuses, `CorruptLog` where the topic is gone or
    somebody else removed records of it, `ParamstreamTimeout` after `timeout_s`.
    """
    try:
        return thread.call(work, timeout_s)
    except TopicUnknown as error:
        raise CorruptLog(
            f"Kafka knows no topic {place.topic}", partition=place.number, remedy="Somebody deleted it"
        ) from error
    except OutOfRange as error:
        raise CorruptLog(
            f"the Kafka topic {place.topic} no longer holds what was read of it before", partition=place.number
        ) from error
    except Trouble as error:
        raise ConnectFailed(f"the Kafka topic {place.topic} cannot be used: {error}", partition=place.number) from error
    except Refused as error:
        raise refused(place, error) from error


def refused(place: Place, error: Refused) -> AccessDenied:
    return AccessDenied(f"Kafka refuses the topic {place.topic}: {error}", partition=place.number)
