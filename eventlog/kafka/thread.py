"""The Kafka thread: aiokafka in a loop of its own, so that no stall of anybody else costs a request or a membership."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from ...errors import ConnectFailed, ParamstreamTimeout

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0

_UNHEARD = logging.NullHandler()
"""Where nobody has asked for logs, aiokafka's go nowhere: while Kafka is away it would write ten lines a second to standard error."""


class KafkaThread:
    """Runs coroutines for other threads. Ends with `close`."""

    def __init__(self, name: str = "paramstream-kafka") -> None:
        logging.getLogger("aiokafka").addHandler(_UNHEARD)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """What the coroutine returns or raises. Blocks; raises `ParamstreamTimeout` after `timeout_s`, and cancels it."""
        if self.loop.is_closed() or not self._thread.is_alive():
            work.close()
            raise ConnectFailed("the log is closed")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except CancelledError as error:
            raise ConnectFailed("the log was closed meanwhile") from error
        except TimeoutError as error:
            if future.done():
                raise
            future.cancel()
            raise ParamstreamTimeout(f"Kafka did not answer within {timeout_s:g} s") from error

    def soon(self, work: Callable[[], object]) -> None:
        """Have the loop call it. Never blocks; nothing where the thread has ended."""
        try:
            self.loop.call_soon_threadsafe(work)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def close(self) -> None:
        """Cancel what runs, and end. A second call changes nothing."""
        if not self._thread.is_alive():
            return
        try:
            self.call(_cancel_all(), CLOSE_TIMEOUT_S)
        finally:
            self.soon(self.loop.stop)
            self._thread.join(CLOSE_TIMEOUT_S)


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
