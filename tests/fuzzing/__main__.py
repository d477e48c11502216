"""`python -m fuzzing [FUZZER] --minutes N`: searches for inputs that a decoder does not refuse as it should. Exit code 1 with a finding.

What is found is kept in the corpus, made small, and fails the tests until it is mended.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzzing.findings import keep
from fuzzing.inside import FOUND
from fuzzing.mutations import TOKENS
from fuzzing.targets import FUZZERS, chosen, inputs

MAX_INPUT_BYTES = 8 * 1024
MAX_MEMORY_MIB = 2048
"""Of the whole process, Python and numpy and what they keep among it."""

MAX_INPUT_S = 30
"""One input takes milliseconds."""

MAX_TOKEN_BYTES = 64
"""Of libFuzzer's."""

WRONG_USAGE = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzzing", description=__doc__)
    parser.add_argument("fuzzer", nargs="?", choices=sorted(FUZZERS), help="default: each in turn")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: another one each time")
    arguments = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print(
            "fuzzing needs atheris, which has wheels for some Pythons on Linux only: pip install -c constraints.txt -e '.[fuzz]'",
            file=sys.stderr,
        )
        return WRONG_USAGE
    fuzzers = [arguments.fuzzer] if arguments.fuzzer else list(FUZZERS)
    codes = [fuzz(fuzzer, arguments.minutes, arguments.seed) for fuzzer in fuzzers]
    return max(codes)


def fuzz(fuzzer: str, minutes: float, seed: int) -> int:
    """1 where something was found."""
    print(f"{fuzzer}: {', '.join(target.name for target in FUZZERS[fuzzer])}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="paramstream-fuzz-") as name:
        seeds, artifacts = Path(name, "seeds"), Path(name, "artifacts")
        seeds.mkdir()
        artifacts.mkdir()
        for number, data in enumerate(inputs(fuzzer)):
            (seeds / str(number)).write_bytes(data)
        tokens = Path(name, "tokens")
        tokens.write_text("".join(f'"{_escaped(token)}"\n' for token in TOKENS if len(token) < MAX_TOKEN_BYTES))
        command = [sys.executable, "-m", "fuzzing.inside", fuzzer, str(artifacts)]
        command += [f"-max_total_time={round(60 * minutes)}", f"-max_len={MAX_INPUT_BYTES}", f"-seed={seed}"]
        command += [f"-rss_limit_mb={MAX_MEMORY_MIB}", f"-timeout={MAX_INPUT_S}", f"-artifact_prefix={artifacts}/"]
        command += ["-print_final_stats=1", "-report_slow_units=10", f"-dict={tokens}", str(seeds)]
        code = subprocess.run(command, check=False).returncode
        found = (artifacts / FOUND).exists()
        for path in artifacts.iterdir():
            # What ended the process itself, or would not end.
            if not found and path.name != FOUND and not path.name.startswith("slow-unit"):
                kept = keep(*chosen(fuzzer, path.read_bytes()))
                print(f"{fuzzer}: {path.name.partition('-')[0]}: kept as {kept}", file=sys.stderr)
    print(f"{fuzzer}: {'nothing found' if code == 0 else f'exit code {code}'}", file=sys.stderr, flush=True)
    return 0 if code == 0 else 1


def _escaped(token: bytes) -> str:
    """As a dictionary of libFuzzer has it."""
    return "".join(rf"\x{byte:02x}" for byte in token)


if __name__ == "__main__":
    sys.exit(main())
