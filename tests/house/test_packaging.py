"""Holds what is installed: the five lists that name rooms agree with the folders, and the wheel holds the package alone."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from house.checkout import ROOT, library_files, library_packages, rooms, root_files

BUILD_TIMEOUT_SECONDS = 100


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_packages_are_the_folders_that_hold_python_files(settings: dict[str, Any]) -> None:
    assert settings["tool"]["setuptools"]["packages"] == library_packages()


def test_mypy_checks_every_room_and_root_file(settings: dict[str, Any]) -> None:
    listed = [Path(path) for path in settings["tool"]["mypy"]["files"]]
    linked = {path.name for path in listed if path.parent == Path("typings/paramstream")}
    assert {name for name in linked if not name.endswith(".py")} == set(rooms())
    assert set(root_files()) <= linked
    assert {"tests", "examples", "benchmarks"} <= {str(path) for path in listed}


def test_pyright_checks_every_room_and_root_file(settings: dict[str, Any]) -> None:
    listed = set(settings["tool"]["pyright"]["include"])
    beside = {"tests", "examples", "benchmarks"}
    assert {name for name in listed if not name.endswith(".py")} == set(rooms()) | beside
    assert set(root_files()) <= listed


def test_ruff_bans_the_import_of_every_room_under_its_bare_name(settings: dict[str, Any]) -> None:
    banned = settings["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    ours = {name for name, ban in banned.items() if ban["msg"].startswith("Import paramstream.")}
    assert ours - {"client", "errors"} == set(rooms())
    assert {"client", "errors"} <= ours


def test_the_type_checkers_links_lead_to_every_room_and_root_file() -> None:
    links = {path.name: path for path in (ROOT / "typings" / "paramstream").iterdir() if path.name != "__pycache__"}
    assert {name for name in links if "." not in name} == set(rooms())
    assert {*root_files(), "py.typed"} <= set(links)
    assert {name: str(path.readlink()) for name, path in links.items()} == {name: f"../../{name}" for name in links}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network from a copy of the checkout.

    A copy without old build outputs, because modules deleted since would come back from them.
    """
    folder = tmp_path_factory.mktemp("wheel")
    passed_over = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "checkout", ignore=passed_over, symlinks=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index"]
    command += ["--wheel-dir", str(folder), str(folder / "checkout")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_python_file_of_the_library_and_no_other(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    assert held == {f"paramstream/{file.as_posix()}" for file in library_files()}


def test_the_wheel_puts_nothing_but_paramstream_into_an_environment(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"paramstream"}


def test_the_wheel_says_that_it_is_typed_and_carries_its_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "paramstream/py.typed" in names
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")] != []


def test_the_wheel_installs_the_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
    assert "paramstream = paramstream.cli.main:main" in archive.read(entry_points).decode()


def test_the_unpacked_wheel_imports_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import paramstream; print(paramstream.__file__)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.stdout.strip() == str(tmp_path / "paramstream" / "__init__.py"), done.stderr
