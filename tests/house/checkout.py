"""The checkout that the tests look at: its root, its rooms, its library files."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

ROOT_MODULES = ("__init__", "client", "errors")
"""The Python files at the root; each ships, so there are no others."""

BESIDE_THE_ROOMS = frozenset({"benchmarks", "build", "dist", "docs", "examples", "tests", "typings"})
"""Folders at the root that hold Python and are no part of the package."""


def rooms(root: Path = ROOT) -> list[str]:
    """Names of the folders at ``root`` that hold any Python file and are part of the package, in plain order."""
    return sorted(
        folder.name
        for folder in root.iterdir()
        if folder.is_dir()
        and folder.name not in BESIDE_THE_ROOMS
        and not folder.name.startswith((".", "__"))
        and not folder.name.endswith(".egg-info")
        and any(folder.rglob("*.py"))
    )


def root_files(root: Path = ROOT) -> list[str]:
    """Names of the Python files at ``root`` itself, in plain order."""
    return sorted(path.name for path in root.glob("*.py"))


def library_files(root: Path = ROOT) -> list[Path]:
    """Every Python file of the package below ``root``, as paths relative to it, in plain order."""
    files = [Path(name) for name in root_files(root)]
    for room in rooms(root):
        files += [path.relative_to(root) for path in (root / room).rglob("*.py")]
    return sorted(files)


def library_packages(root: Path = ROOT) -> list[str]:
    """Dotted names of ``paramstream`` and of every folder of the package that holds a Python file, in plain order."""
    folders = {file.parent for file in library_files(root)}
    return sorted(".".join(("paramstream", *folder.parts)) for folder in folders)
