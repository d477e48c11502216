"""The process of one fuzzer: libFuzzer by atheris, which sees which lines of the library an input reaches. `__main__` starts it.

It ends with the first finding: an exception that the decoder does not promise, an input that takes too long, or too much memory.
"""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

FOUND = "found"
"""Beside the artifacts: the finding has been kept."""


def main() -> None:
    fuzzer, artifacts, *arguments = sys.argv[1:]
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["paramstream"]):
        targets = importlib.import_module("fuzzing.targets")
    findings, target_module = importlib.import_module("fuzzing.findings"), importlib.import_module("fuzzing.target")
    logging.disable(logging.CRITICAL)

    def check(data: bytes) -> None:
        target, rest = targets.chosen(fuzzer, data)
        error = findings.failure(target, rest)
        if error is None:
            return

        def fails_alike(shorter: bytes) -> bool:
            return type(findings.failure(target, shorter)) is type(error)

        small = findings.smaller(rest, fails_alike)
        path = findings.keep(target, small)
        Path(artifacts, FOUND).write_text(str(path))
        print(f"\n{target.name}: {type(error).__name__}: {error}\nkept as {path}", file=sys.stderr, flush=True)
        raise error

    with target_module.traced():
        for data in targets.inputs(fuzzer):
            # What a first call fills is not to be measured.
            findings.failure(*targets.chosen(fuzzer, data))
        atheris.Setup([sys.argv[0], *arguments], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
