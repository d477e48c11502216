"""Holds the floors: imports inside the library go downwards only, are relative, and make no circle."""

from pathlib import Path

import pytest

from house.checkout import ROOT, ROOT_MODULES, rooms, root_files
from house.imports import FLOORS, circle, library_imports, off_their_floor


def test_every_room_stands_on_a_floor() -> None:
    assert sorted(set(rooms()) - set(FLOORS)) == []


def test_the_root_holds_no_other_python_files_than_the_three() -> None:
    assert sorted(set(root_files()) - {f"{module}.py" for module in ROOT_MODULES}) == []


def test_no_import_goes_up_or_sideways() -> None:
    assert [str(each) for each in off_their_floor(library_imports(ROOT))] == []


def test_no_imports_make_a_circle() -> None:
    assert circle(library_imports(ROOT)) == []


def test_the_library_imports_itself_relatively() -> None:
    assert [str(each) for each in library_imports(ROOT) if not each.relative] == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("events/codec.py", "from ..transport import frames"),
        ("events/codec.py", "from ..transport.frames import Hello"),
        ("events/codec.py", "from .. import client"),
        ("events/codec.py", "from .. import Broker"),
        ("events/codec.py", "import paramstream"),
        ("events/codec.py", "def late():\n    from ..tiers import dram"),
        ("errors.py", "from .consistency import position"),
        ("client.py", "from .cli import main"),
    ],
)
def test_an_import_that_goes_up_or_sideways_is_found(tmp_path: Path, file: str, line: str) -> None:
    write(tmp_path, {file: line})
    assert len(off_their_floor(library_imports(tmp_path))) == 1


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("events/codec.py", "from ..consistency.position import Position"),
        ("events/codec.py", "from .. import errors"),
        ("events/codec.py", "from . import kinds"),
        ("events/codec.py", "import events_of_another_library"),
        ("client.py", "from .consumers.replica import Replica"),
        ("cli/demo.py", "from ..client import connect"),
        ("__init__.py", "from .client import connect"),
    ],
)
def test_an_import_that_goes_down_is_let_through(tmp_path: Path, file: str, line: str) -> None:
    write(tmp_path, {file: line})
    assert off_their_floor(library_imports(tmp_path)) == []


@pytest.mark.parametrize("line", ["import paramstream.events", "from paramstream.events import codec", "import events"])
def test_an_import_of_the_library_by_its_full_name_is_found(tmp_path: Path, line: str) -> None:
    write(tmp_path, {"brokers/core.py": line})
    assert [each.relative for each in library_imports(tmp_path)] == [False]


def test_a_circle_inside_a_room_is_found(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "events/codec.py": "from .kinds import Chunk",
            "events/kinds.py": "from . import digests",
            "events/digests.py": "def late():\n    from .codec import encode",
        },
    )
    assert circle(library_imports(tmp_path)) == [
        ("events", "codec"),
        ("events", "kinds"),
        ("events", "digests"),
        ("events", "codec"),
    ]


def test_a_module_that_imports_its_own_room_is_a_circle(tmp_path: Path) -> None:
    write(tmp_path, {"events/__init__.py": "from .codec import encode", "events/codec.py": "from . import Chunk"})
    assert circle(library_imports(tmp_path)) == [("events",), ("events", "codec"), ("events",)]


def write(root: Path, sources: dict[str, str]) -> None:
    """Writes a library of these files, with one empty module in every room besides, so that each name is one."""
    for module, floor in FLOORS.items():
        path = root / f"{module}.py" if module in ("errors", "client") else root / module / f"floor_{floor}.py"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for file, source in sources.items():
        (root / file).write_text(source, encoding="utf-8")
