"""Code that blocks, run beside the world and cut into steps of it.

A snapshot is taken by a thread of its user, which waits for the replica's lock again and again. Here that thread runs only while
the world waits for it: from one pause to the next. Pauses are where it takes the replica's lock (`Turns`), where it waits, and
where a disk may keep it (`pause`). So the real code runs, a seed says what happens in between, and it can die at any pause.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_here = threading.local()


class Killed(BaseException):
    """The process ends here. No error: nobody handles it."""


class Aside:
    """`run` in a thread of its own, which begins with the first step."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._run = run
        self._goes, self._paused = threading.Lock(), threading.Lock()
        self._goes.acquire()
        self._paused.acquire()
        self._thread = threading.Thread(target=self._main, name=f"paramstream-aside-{name}", daemon=True)
        self.is_over = False
        self.is_killed = False
        self.error: BaseException | None = None
        """What it ended with, unless it was killed."""
        self._thread.start()

    def step(self) -> bool:
        """Let it go on to its next pause. False once it is over."""
        if not self.is_over:
            self._goes.release()
            self._paused.acquire()
        return not self.is_over

    def kill(self) -> None:
        """It ends where it is; what it does on its way out, a dead process would not have done (`is_dead`)."""
        self.is_killed = True
        self.step()
        self._thread.join()

    def pause(self) -> None:
        """By its own thread."""
        if self.is_killed:
            return
        self._paused.release()
        self._goes.acquire()
        if self.is_killed:
            raise Killed

    def _main(self) -> None:
        _here.aside = self
        self._goes.acquire()
        try:
            if not self.is_killed:
                self._run()
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001 - the world says what it makes of it
            self.error = error
        finally:
            self.is_over = True
            self._paused.release()


def pause() -> None:
    """Where the world may go on, if this is code beside it; where the world itself comes by, nothing happens."""
    aside: Aside | None = getattr(_here, "aside", None)
    if aside is not None:
        aside.pause()


def is_dead() -> bool:
    """Whether the code that asks belongs to a process that was killed, and only cleans up after itself."""
    aside: Aside | None = getattr(_here, "aside", None)
    return aside is not None and aside.is_killed


class Turns(threading.Condition):
    """A replica's lock where only one thread runs at a time: nothing is locked, but whoever comes from beside the world waits."""

    def __enter__(self) -> bool:
        pause()
        return True

    def __exit__(self, *args: object) -> None:
        """Nobody else was let in."""

    def wait(self, timeout: float | None = None) -> bool:
        pause()
        return True

    def notify_all(self) -> None:
        """Who waits looks again whenever it is let go on."""
