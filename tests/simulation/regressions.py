"""Scenarios that once failed, made short: each is played in every run of the tests."""

from __future__ import annotations

from dataclasses import dataclass

from .scenario import Scenario


@dataclass(frozen=True)
class Regression:
    about: str
    """What was broken."""
    scenario: Scenario


REGRESSIONS: list[Regression] = []
