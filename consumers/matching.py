"""Which tensor of a version goes where in a module: names, renamed or not, shapes and dtypes. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import ParamstreamError, SchemaMismatch
from ..events.kinds import TensorSpec
from .casting import Cast, may_cast
from .versions import Sealed

Rename = Mapping[str, str] | Callable[[str], str]
"""Name in the stream → name in the module. A mapping leaves names that it does not have as they are."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a tensor of the module takes."""

    dtype: str
    shape: tuple[int, ...]

    def problem(self, spec: TensorSpec, cast: Cast) -> str:
        """Why it does not take a tensor of the version, with both sides; empty where it does."""
        if self.shape != spec.shape:
            return f"{self.shape} here, {spec.shape} there"
        if not may_cast(spec.dtype, self.dtype, cast):
            return f"{self.dtype} here, {spec.dtype} there"
        return ""


@dataclass(frozen=True, slots=True)
class SwapReport:
    """What became of a version that a module was to take. As text: "3 of 3 applied", and what was not."""

    version: int
    applied: int
    """Tensors of the version that the module has now."""
    of: int
    """Tensors that the version has."""
    unmatched: tuple[str, ...]
    """Names of the version that the module lacks, as the stream has them."""
    missing: tuple[str, ...]
    """Names of the module that the version lacks."""
    unfit: tuple[str, ...]
    """Names of the module whose shape, or dtype, is another one than the version's, with both."""

    def __str__(self) -> str:
        return "; ".join([f"{self.applied} of {self.of} applied", *self.problems()])

    def problems(self) -> list[str]:
        lists = (
            ("the version lacks", self.missing),
            ("the module lacks", self.unmatched),
            ("other shapes or dtypes", self.unfit),
        )
        return [f"{what}: {', '.join(names)}" for what, names in lists if names]


@dataclass(frozen=True, slots=True)
class Match:
    """`pairs`: name in the module → name in the stream, which fits. With an `error` none of them may be applied."""

    pairs: Mapping[str, str]
    report: SwapReport
    error: ParamstreamError | None


def match(
    sealed: Sealed, targets: Mapping[str, Target], rename: Rename | None, strict: bool, cast: Cast, topic: str
) -> Match:
    """How `sealed` fits onto the tensors `targets`. Not strict, what fits is taken, but something must."""
    try:
        homes = {name: _renamed(name, rename) for name in sealed.specs}
    except Exception as problem:  # noqa: BLE001 - a user's function, called where versions are applied
        return _failed(sealed, f"`rename` raised {type(problem).__name__}: {problem}", topic)
    taken: dict[str, str] = {}
    for name, home in homes.items():
        if home in taken:
            return _failed(sealed, f"`rename` gives {taken[home]!r} and {name!r} the same name {home!r}", topic)
        taken[home] = name
    unfit = {
        home: why
        for home, name in taken.items()
        if home in targets and (why := targets[home].problem(sealed.specs[name], cast))
    }
    pairs = {home: taken[home] for home in targets if home in taken and home not in unfit}
    report = SwapReport(
        version=sealed.version,
        applied=len(pairs),
        of=len(homes),
        unmatched=tuple(sorted(_shown(name, home) for name, home in homes.items() if home not in targets)),
        missing=tuple(sorted(targets.keys() - taken.keys())),
        unfit=tuple(f"{home}: {unfit[home]}" for home in sorted(unfit)),
    )
    problems = report.problems()
    if not problems or (not strict and pairs):
        return Match(pairs, report, None)
    error = SchemaMismatch(
        f"the module does not match the version: {'; '.join(problems)}",
        topic=topic,
        version=sealed.version,
        item=next(iter(sorted(unfit)), None),
        remedy="Bind with rename=, a module of the same names, shapes and dtypes, cast= for other dtypes, "
        "or strict=False for what does match",
    )
    return Match({}, _nothing_of(report), error)


def _renamed(name: str, rename: Rename | None) -> str:
    if rename is None:
        return name
    return rename(name) if callable(rename) else rename.get(name, name)


def _shown(name: str, home: str) -> str:
    return name if home == name else f"{name} (here {home})"


def _nothing_of(report: SwapReport) -> SwapReport:
    return SwapReport(report.version, 0, report.of, report.unmatched, report.missing, report.unfit)


def _failed(sealed: Sealed, problem: str, topic: str) -> Match:
    report = SwapReport(sealed.version, 0, len(sealed.specs), tuple(sorted(sealed.specs)), (), ())
    return Match({}, report, SchemaMismatch(problem, topic=topic, version=sealed.version))
