"""Children of a test by name, and the client beside them: whatever happens, `close` kills each by its own pid."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import paramstream as ps

from .child import Child


class Family:
    """As a context manager it is closed at the end."""

    def __init__(self, start_s: float) -> None:
        """`start_s`: within this a child says that it is up."""
        self.children: dict[str, Child] = {}
        self.starting: set[str] = set()
        """Children that have not said that they are up."""
        self.client: ps.Client | None = None
        self._start_s = start_s

    def await_all_up(self) -> None:
        for name in list(self.starting):
            self.children[name].read(self._start_s)
            self.starting.discard(name)

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
        if self.client is not None:
            self.client.close(timeout=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
