"""A promise of ours that can be switched off, as data."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

from .kinds import Kind, kind_of


@dataclass(frozen=True)
class Patch:
    owner: object
    """A class, or a module."""
    attribute: str
    instead: object


@dataclass(frozen=True)
class Mutation:
    name: str
    promise: str
    """The rule that is switched off."""
    patches: tuple[Patch, ...]
    shows: str
    """What a problem that is found by it says (`play.Verdict.problems`)."""
    seeds: int
    """From seed 1 on it is caught within so many."""
    found_at: int
    """A seed that is known to catch it, so that the tests need not look long. After a change it may be another one: write that down."""
    kind: Kind | None = None
    """Of the worlds that it is looked for in; None: of any."""

    def may_show_at(self, seed: int) -> bool:
        return self.kind in (None, kind_of(seed))

    @contextmanager
    def switched_off(self) -> Generator[None]:
        with ExitStack() as patched:
            for patch in self.patches:
                patched.enter_context(mock.patch.object(patch.owner, patch.attribute, patch.instead))
            yield
