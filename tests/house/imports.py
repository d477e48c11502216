"""What the library's files import of the library, read from their syntax alone: nothing is imported to find out.

Imports inside functions and under ``TYPE_CHECKING`` count like all others: a circle that bites only a type checker, or
only the first caller, is a circle.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from house.checkout import library_files, rooms

FLOORS = {
    "errors": 0,
    "consistency": 1,
    "events": 2,
    "tiers": 2,
    "transport": 3,
    "eventlog": 3,
    "brokers": 4,
    "producers": 4,
    "consumers": 4,
    "client": 5,
    "cli": 5,
}
"""A module may import what stands on a lower floor, and its own room."""

FRONT_DOOR = "__init__"
"""The root's list of public names: above every floor, and imported by none."""

TOP_FLOOR_USES = {("cli", "client")}
"""The one exception: the command line is a user of the client, and so stands on its shoulders on the same floor."""


@dataclass(frozen=True)
class Import:
    """One imported module of the library."""

    file: Path
    """The file that imports, relative to the root."""
    line: int
    target: tuple[str, ...]
    """The imported module below the root: ``("events", "codec")``. Empty for the root's own list of names."""
    relative: bool
    """False where the library is imported by a full name."""

    @property
    def importing_room(self) -> str:
        """The room, or root module, that imports."""
        return self.file.parts[0].removesuffix(".py")

    @property
    def imported_room(self) -> str:
        """The room, or root module, that is imported."""
        return self.target[0] if self.target else FRONT_DOOR

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {'.'.join(self.target) or 'the public names'}"


def library_imports(root: Path) -> list[Import]:
    """Every import of the library by the library, below ``root``."""
    files = library_files(root)
    modules = {module_of(file) for file in files}
    # A folder counts as a module too: an empty room may be imported by its name.
    modules |= {module[:depth] for module in modules for depth in range(1, len(module))}
    found: list[Import] = []
    for file in files:
        tree = ast.parse((root / file).read_text(encoding="utf-8"), filename=str(file))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found += _full_names(file, node, rooms(root))
            elif isinstance(node, ast.ImportFrom):
                found += _from_names(file, node, modules, rooms(root))
    return found


def module_of(file: Path) -> tuple[str, ...]:
    """The module that a file is, below the root: ``events/codec.py`` is ``("events", "codec")``, ``__init__.py`` is ``()``."""
    parts = file.with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def off_their_floor(imports: list[Import]) -> list[Import]:
    """Those imports that go up or sideways."""
    return [each for each in imports if not _goes_down(each.importing_room, each.imported_room)]


def circle(imports: list[Import]) -> list[tuple[str, ...]]:
    """The modules of one circle of imports in their order, the first of them again at the end; empty where none is."""
    edges: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for each in imports:
        edges.setdefault(module_of(each.file), set()).add(each.target)
    finished: set[tuple[str, ...]] = set()
    for start in sorted(edges):
        found = _circle_from(start, edges, finished)
        if found:
            return found
    return []


def _circle_from(
    start: tuple[str, ...], edges: dict[tuple[str, ...], set[tuple[str, ...]]], finished: set[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Walks depth first from ``start``; a module met again on the path that led to it closes a circle."""
    if start in finished:
        return []
    path = [start]
    ahead = [sorted(edges.get(start, ()))]
    while path:
        if not ahead[-1]:
            ahead.pop()
            finished.add(path.pop())
            continue
        following = ahead[-1].pop()
        if following in path:
            return [*path[path.index(following) :], following]
        if following not in finished:
            path.append(following)
            ahead.append(sorted(edges.get(following, ())))
    return []


def _goes_down(importing: str, imported: str) -> bool:
    if importing == FRONT_DOOR:
        return True
    if imported == FRONT_DOOR:
        return False
    return importing == imported or FLOORS[imported] < FLOORS[importing] or (importing, imported) in TOP_FLOOR_USES


def _full_names(file: Path, node: ast.Import, own: list[str]) -> Iterator[Import]:
    for name in node.names:
        parts = tuple(name.name.split("."))
        if parts[0] == "paramstream":
            yield Import(file, node.lineno, parts[1:], relative=False)
        elif parts[0] in own:
            yield Import(file, node.lineno, parts, relative=False)


def _from_names(file: Path, node: ast.ImportFrom, modules: set[tuple[str, ...]], own: list[str]) -> Iterator[Import]:
    named = node.module.split(".") if node.module else []
    if node.level:
        folder = file.parent.parts
        above = node.level - 1
        assert above <= len(folder), f"{file}:{node.lineno} imports from outside the package"
        base = (*folder[: len(folder) - above], *named)
    elif named[0] == "paramstream":
        base = tuple(named[1:])
    elif named[0] in own:
        base = tuple(named)
    else:
        return
    # `from .. import errors` imports the module errors; `from ..events import Chunk` imports the module events.
    targets = {(*base, name.name) if (*base, name.name) in modules else base for name in node.names}
    for target in sorted(targets):
        yield Import(file, node.lineno, target, relative=node.level > 0)
