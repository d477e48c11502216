"""Holds the front door: what `import paramstream` offers, and that importing it does nothing else."""

import ast
import inspect
import subprocess
import sys
import types
from collections.abc import Callable

import pytest

import paramstream
from house.checkout import ROOT

IMPORT_TIMEOUT_SECONDS = 60
OPTIONAL = ("torch", "aiokafka", "sklearn", "cupy", "numba")
"""What only an extra installs: a plain install must import without them, and quickly."""


def test_the_public_names_are_in_plain_order_and_named_once() -> None:
    assert paramstream.__all__ == sorted(set(paramstream.__all__))


def test_every_public_name_is_there() -> None:
    assert [name for name in paramstream.__all__ if not hasattr(paramstream, name)] == []


def test_every_name_that_is_there_is_public() -> None:
    names = {
        name
        for name, value in vars(paramstream).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert sorted(names - set(paramstream.__all__)) == []


def test_the_torch_modules_are_at_the_front_door_and_a_star_import_does_not_hide_torch() -> None:
    assert paramstream.torch.__name__ == "paramstream.consumers.torch"
    assert "torch" not in paramstream.__all__


def test_every_public_class_and_function_says_what_it_is() -> None:
    def is_silent(value: object) -> bool:
        return isinstance(value, type | types.FunctionType) and not value.__doc__

    assert [name for name in paramstream.__all__ if is_silent(getattr(paramstream, name))] == []


def test_the_front_door_is_a_list_of_names_and_nothing_else() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    docstring, *statements = tree.body
    assert isinstance(docstring, ast.Expr)
    other = [node.lineno for node in statements if not _imports_from_inside(node) and not _sets_all(node)]
    assert other == []


def _imports_from_inside(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.level == 1


def _sets_all(node: ast.stmt) -> bool:
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target) == "__all__"
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]


@pytest.mark.parametrize("optional", OPTIONAL)
def test_importing_paramstream_does_not_import(optional: str) -> None:
    assert optional not in modules_after("import paramstream")


def test_importing_paramstream_starts_no_thread_and_sets_up_no_logging() -> None:
    code = "import paramstream, threading, logging; print(threading.active_count(), logging.getLogger().handlers)"
    assert output_of(code).split("\n")[0] == "1 []"


def modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds after it ran ``code``."""
    return set(output_of(f"{code}\nimport sys\nprint(*sys.modules)").split())


def output_of(code: str) -> str:
    """What a fresh interpreter prints that runs ``code`` with warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("function", "by_position"),
    [
        (paramstream.Broker, "bind log insecure keeper"),
        (paramstream.connect, "endpoint"),
        (paramstream.Client.create_topic, "self name partitions persistence retain_versions exist_ok"),
        (paramstream.Client.create_table, "self topic table dim dtype optimizer init expire_after exist_ok"),
        (paramstream.Client.alter_table, "self topic table optimizer"),
        (paramstream.Client.publisher, "self topic producer observes lost"),
        (paramstream.Client.replica, "self topics name ordering store start catch_up visibility"),
        (paramstream.Client.subscribe, "self topic ordering start visibility"),
        (paramstream.Client.wait_replicas, "self topic version count timeout"),
        (paramstream.Client.lookup, "self topic table keys at_least return_found"),
        (paramstream.Client.get, "self topic key at_least"),
        (paramstream.Replica.serve, "self bind"),
        (paramstream.Publisher.publish_weights, "self module_or_mapping version mode schema seal rewind"),
        (paramstream.Publisher.commit, "self version parts schema rewind"),
        (paramstream.Publisher.put, "self key value ttl valid_for"),
        (paramstream.Publisher.put_many, "self items ttl valid_for"),
        (paramstream.restore, "source topic at store dense_only"),
        (paramstream.processor, "source sink"),
        (paramstream.Client.run, "self step name state"),
        (paramstream.Replica.wait, "self target timeout"),
        (paramstream.Replica.wait_version, "self version timeout topic"),
        (paramstream.Replica.weights, "self version topic"),
        (paramstream.Replica.rollback, "self version timeout topic"),
        (paramstream.Replica.snapshot, "self directory timeout"),
        (paramstream.Replica.get, "self key topic"),
        (paramstream.Replica.lookup, "self table keys return_found topic"),
    ],
)
def test_what_can_be_given_by_position_stays_in_its_place(function: Callable[..., object], by_position: str) -> None:
    """Parameters that are still to come stand between others: what is behind them is given by name only."""
    names = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    assert names[: len(by_position.split())] == by_position.split()
    assert set(names[len(by_position.split()) :]) <= {"timeout", "arrays"}
