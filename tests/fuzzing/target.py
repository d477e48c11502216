"""One decoder under test, and what is held of it for every input there is.

It returns, or raises one of the errors that it promises; it holds on to no more memory than the input can answer for. What a
decoder returns is looked at by the target's own function: that it can be encoded again, that another reader says the same of it.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paramstream.errors import CorruptLog

CORPUS = Path(__file__).parent / "corpus"


class TooMuchMemory(AssertionError):
    """An input made its decoder allocate more than its bound allows."""


@dataclass(frozen=True)
class Target:
    """A decoder: bytes in; what it returns is of no interest."""

    name: str
    """Of its folder in the corpus too."""
    decode: Callable[[bytes], object]
    """Raises `errors` for what it refuses; any other exception is a finding."""
    seeds: Callable[[], Iterable[bytes]]
    """Valid inputs, from our own encoders."""
    errors: tuple[type[Exception], ...] = (CorruptLog,)
    factor: int = 64
    """The peak of what is allocated meanwhile is at most so many times the input, ..."""
    fixed_bytes: int = 1 << 20
    """... and so much beside that: the text of an error, a handful of small objects, ..."""

    close: Callable[[], None] = lambda: None
    """Gives back what is kept from input to input."""
    examples: int = 30
    """How many a test run tries; the fuzzers run by hand try millions."""

    def check(self, data: bytes) -> None:
        """Raises what was found."""
        allowed = self.factor * len(data) + self.fixed_bytes
        # What a first call fills, code and caches and the interpreter's own tables, is not there a second time.
        if self._allocated(data) > allowed and (peak := self._allocated(data)) > allowed:
            raise TooMuchMemory(f"{self.name}: {len(data)} bytes of input allocated {peak} bytes")

    def _allocated(self, data: bytes) -> int:
        with traced():
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with suppress(*self.errors):
                self.decode(data)
            _, peak = tracemalloc.get_traced_memory()
        return peak - before

    def corpus(self) -> list[Path]:
        """What was found before, each mended since."""
        return sorted((CORPUS / self.name).glob("*"))


@contextmanager
def traced() -> Generator[None]:
    """Allocations are counted meanwhile, which costs all others time."""
    if tracemalloc.is_tracing():
        yield
        return
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
