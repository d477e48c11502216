"""The rules of a version's set of tensors: one union, one digest, one schema.

The union of a topic's first commit sets the schema: names, shapes, dtypes, ties. Of tensors that are tied, one may stand for
all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..errors import InvalidEvent, SchemaMismatch
from ..events.digest import version_digest
from ..events.kinds import Commit, Part, TensorSpec

Schema = Sequence[TensorSpec]

_MOST_SHOWN = 8
"""Names that an error lists."""


def check_part(part: Part, sequence: int) -> None:
    """Whether a part is right by itself. Raises `InvalidEvent` naming the tensor.

    Names are there once; what is tied names a tensor of the same part and is equal to it; bytes lie in chunks sent before.
    """
    by_name = {spec.name: spec for spec in part.tensors}
    if len(by_name) != len(part.tensors):
        raise InvalidEvent("a part names a tensor twice", version=part.version)
    for spec in part.tensors:
        if spec.tied_to:
            target = by_name.get(spec.tied_to)
            if target is None or target.tied_to or _values(target) != _values(spec):
                raise InvalidEvent(
                    f"tied tensors disagree: it is tied to {spec.tied_to!r}, which the part does not have with the same values",
                    item=spec.name,
                    version=part.version,
                    remedy="Untie them, or give both the same values",
                )
        elif spec.nbytes and not 0 < spec.first_chunk <= spec.last_chunk < sequence:
            raise InvalidEvent(
                f"its {spec.nbytes} bytes lie in chunks {spec.first_chunk} to {spec.last_chunk}, "
                f"which do not stand before the part, {sequence}",
                item=spec.name,
                version=part.version,
            )


def union_of(parts: Iterable[Iterable[TensorSpec]]) -> dict[str, TensorSpec]:
    """The tensors of all parts by name. A name of several parts must be the same in each, else `InvalidEvent`."""
    union: dict[str, TensorSpec] = {}
    for tensors in parts:
        for spec in tensors:
            known = union.setdefault(spec.name, spec)
            if known is not spec and _values(known) != _values(spec):
                raise InvalidEvent(
                    f"two parts have different values of it: {_show(known)} and {_show(spec)}",
                    item=spec.name,
                    remedy="Publish each tensor from one producer only",
                )
    return union


def as_schema(union: Mapping[str, TensorSpec]) -> tuple[TensorSpec, ...]:
    """The union without values: sorted by name, digests and chunks left out."""
    return tuple(
        TensorSpec(spec.name, spec.dtype, spec.shape, b"", spec.nbytes, tied_to=spec.tied_to)
        for _, spec in sorted(union.items())
    )


def check_digest(union: Mapping[str, TensorSpec], schema: Schema | None, commit: Commit) -> None:
    """The commit's digest is over the union, or over the union completed by the tied names that it left out."""
    if version_digest(union.values()) == commit.digest:
        return
    if schema is not None and commit.schema != "replace":
        completed = complete(union, schema)
        if len(completed) > len(union) and version_digest(completed.values()) == commit.digest:
            return
    raise InvalidEvent(
        f"the digest of the commit, {commit.digest.hex()}, is not that of its parts", version=commit.version
    )


def complete(union: Mapping[str, TensorSpec], schema: Schema) -> dict[str, TensorSpec]:
    """The union with the tied names of the schema that it left out, each with the values of what it is tied to."""
    groups = _groups(schema)
    completed = dict(union)
    for spec in schema:
        if spec.name not in completed:
            present = next((name for name in groups[_root(spec)] if name in union), None)
            if present is not None:
                completed[spec.name] = msgspec.structs.replace(union[present], name=spec.name, tied_to=present)
    return completed


def check_schema(union: Mapping[str, TensorSpec], schema: Schema, version: int) -> None:
    """Raises `SchemaMismatch` naming the first tensor that differs, with both shapes and dtypes."""
    expected = {spec.name: spec for spec in schema}
    for name in sorted(union):
        if name not in expected:
            raise _mismatch("the schema has no such tensor", name, version)
        want, got = expected[name], union[name]
        if (want.dtype, want.shape) != (got.dtype, got.shape):
            raise _mismatch(f"the schema says {_show(want)}, the version has {_show(got)}", name, version)
        if got.tied_to and (got.tied_to not in expected or _root(expected[got.tied_to]) != _root(want)):
            raise _mismatch(
                f"it is tied to {got.tied_to!r}, the schema says {want.tied_to or 'not tied'!r}", name, version
            )
    groups = _groups(schema)
    missing = [root for root, names in groups.items() if not any(name in union for name in names)]
    if missing:
        raise _mismatch(f"the version lacks {_list(missing)}", missing[0], version)
    for names in groups.values():
        present = [union[name] for name in names if name in union]
        if len({spec.digest for spec in present}) > 1:
            raise _mismatch(f"tied tensors disagree: {', '.join(names)} are tied by the schema", names[-1], version)


def _groups(schema: Schema) -> dict[str, list[str]]:
    """Names that are tied together, by the name that the others are tied to; most groups have one name."""
    groups: dict[str, list[str]] = {}
    for spec in schema:
        groups.setdefault(_root(spec), []).append(spec.name)
    return groups


def _root(spec: TensorSpec) -> str:
    return spec.tied_to or spec.name


def _values(spec: TensorSpec) -> tuple[str, tuple[int, ...], bytes]:
    return spec.dtype, spec.shape, spec.digest


def _list(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:_MOST_SHOWN])
    return f"{shown} and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else shown


def _show(spec: TensorSpec) -> str:
    return f"{spec.dtype} {spec.shape}"


def _mismatch(problem: str, name: str, version: int) -> SchemaMismatch:
    return SchemaMismatch(
        problem, item=name, version=version, remedy='Publish what the schema says, or say schema="replace"'
    )
