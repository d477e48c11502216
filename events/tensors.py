"""The tensors that a user hands in, by name: of a torch module or a mapping, described and not yet read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ..errors import InvalidEvent
from .arrays import describe, nbytes_of
from .limits import check_name

MAX_DEPTH = 64
"""Of nested mappings: one that holds itself is refused like any other bad input."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a publish, described and not yet read."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    value: Any

    @property
    def nbytes(self) -> int:
        return nbytes_of(self.dtype, self.shape)


def describe_tensors(source: object) -> dict[str, Tensor]:
    """Every tensor of a torch module (its `state_dict()`, buffers too) or of a mapping; nested mappings get dotted names.

    Raises `InvalidEvent` naming the tensor for what is no dense, supported array; naming both origins where two names
    flatten to one; and for an empty mapping. Reads no values.
    """
    state_dict = getattr(source, "state_dict", None)
    found: dict[str, tuple[tuple[str, ...], object]] = {}
    _flatten(state_dict() if callable(state_dict) else source, (), found)
    if not found:
        raise InvalidEvent("a version needs at least one tensor", remedy="Publish a module or a mapping of arrays")
    tensors: dict[str, Tensor] = {}
    for name, (_, value) in found.items():
        check_name("tensor", name)
        dtype, shape = describe(name, value)
        tensors[name] = Tensor(name, dtype, shape, value)
    return tensors


def _flatten(source: object, path: tuple[str, ...], found: dict[str, tuple[tuple[str, ...], object]]) -> None:
    if not isinstance(source, Mapping):
        where = ".".join(path)
        raise InvalidEvent(
            f"weights are a torch module or a mapping of arrays, not {type(source).__name__}", item=where or None
        )
    if len(path) > MAX_DEPTH:
        raise InvalidEvent(f"mappings nest deeper than {MAX_DEPTH}", item=".".join(path)[:64])
    items = cast(Mapping[object, object], source)
    for key, value in items.items():
        if not isinstance(key, str):
            raise InvalidEvent(f"a tensor name must be a str, not {key!r}", item=".".join(path) or None)
        here = (*path, key)
        if isinstance(value, Mapping):
            _flatten(cast(object, value), here, found)
            continue
        name = ".".join(here)
        if name in found:
            raise InvalidEvent(
                f"two tensors flatten to the name {name!r}: {_show(found[name][0])} and {_show(here)}",
                item=name,
                remedy="Rename one of them",
            )
        found[name] = here, value


def _show(path: tuple[str, ...]) -> str:
    return "".join(f"[{key!r}]" for key in path)
