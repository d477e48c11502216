"""`paramstream bench`: runs the benchmarks that lie in a checkout's `benchmarks/`.

Each module there has `run(quick: bool = False) -> dict[str, object]`, and says in the first line of its docstring what it measures.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import pkgutil
import sys
from types import ModuleType

from ..errors import ParamstreamError
from .output import print_json

NAME: str = "bench"
HELP: str = "run the benchmarks of a checkout, or the one that is named"

PACKAGE = "..benchmarks"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="one benchmark (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="fewer and smaller rounds: seconds instead of minutes, less exact"
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")


def run(arguments: argparse.Namespace) -> int:
    modules = find_benchmarks()
    if arguments.name is not None:
        if arguments.name not in modules:
            raise ParamstreamError(
                f"there is no benchmark {arguments.name!r}", remedy=f"There are {', '.join(modules) or 'none'}"
            )
        modules = {arguments.name: modules[arguments.name]}
    if arguments.list:
        _print_list(modules, arguments.json)
        return 0
    results: dict[str, dict[str, object]] = {}
    for name, module in modules.items():
        if sys.stderr.isatty():
            print(f"{name}: {_first_line(module)}", file=sys.stderr)
        results[name] = module.run(quick=arguments.quick)
        if not arguments.json:
            _print_result(name, results[name])
    if arguments.json:
        print_json(results)
    return 0


def find_benchmarks() -> dict[str, ModuleType]:
    """The benchmarks of the checkout that this package runs from, by name. Raises `ParamstreamError` outside a checkout."""
    package = importlib.util.resolve_name(PACKAGE, __package__)
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ParamstreamError(
            "benchmarks lie in a checkout of paramstream and are not installed with it",
            remedy="Clone the repository and run `make bench` there",
        )
    names = sorted(each.name for each in pkgutil.iter_modules(found.submodule_search_locations) if not each.ispkg)
    modules = {name: importlib.import_module(f"{package}.{name}") for name in names}
    # What the benchmarks share lies beside them, and measures nothing.
    return {name: module for name, module in modules.items() if hasattr(module, "run")}


def _print_list(modules: dict[str, ModuleType], as_json: bool) -> None:
    if as_json:
        print_json({name: _first_line(module) for name, module in modules.items()})
        return
    for name, module in modules.items():
        print(f"{name}: {_first_line(module)}")


def _print_result(name: str, result: dict[str, object]) -> None:
    print(name)
    for key, value in result.items():
        print(f"  {key}: {value:.4g}" if isinstance(value, float) else f"  {key}: {value}")


def _first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0]
