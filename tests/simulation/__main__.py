"""`python -m simulation`: many hostile worlds by hand (`make sim SEEDS=1:2000`). Exit code 1 where a promise was broken."""

from __future__ import annotations

import argparse
import os
import sys
import time

import xxhash

from .mutation import Mutation
from .mutations import MUTATIONS
from .play import Verdict
from .runner import report_of, verdicts
from .scenario import STEPS


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=range(1, 201), help="first:last (default 1:200)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each scenario (default %(default)s)")
    parser.add_argument(
        "--mutation", choices=sorted(MUTATIONS), help="with this promise switched off: fails where it is found"
    )
    parser.add_argument("--mutations", action="store_true", help="see whether each promise, switched off, is caught")
    arguments = parser.parse_args()
    if arguments.mutations:
        caught = [_is_caught(mutation, arguments) for mutation in MUTATIONS.values()]
        return 0 if all(caught) else 1
    return _search(arguments)


def _seeds(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last or first) + 1)


def _search(arguments: argparse.Namespace) -> int:
    """All seeds; what fails is told, made short, as soon as it is known."""
    begun, digests, failed = time.monotonic(), dict[int, str](), 0
    for verdict in verdicts(arguments.seeds, arguments.steps, arguments.jobs, arguments.mutation):
        digests[verdict.scenario.seed] = verdict.digest
        if verdict.problems:
            failed += 1
            _clear()
            print(report_of(verdict, arguments.mutation), flush=True)
        _progress(f"{len(digests)} of {len(arguments.seeds)} worlds, {failed} failed")
    _clear()
    trace = xxhash.xxh3_64("".join(digest for _, digest in sorted(digests.items())).encode()).hexdigest()
    print(f"{len(digests)} worlds, {failed} failed, trace {trace}, {time.monotonic() - begun:.1f} s")
    return 1 if failed else 0


def _is_caught(mutation: Mutation, arguments: argparse.Namespace) -> bool:
    begun = time.monotonic()
    found = _first_that_shows(mutation, arguments)
    _clear()
    caught = f"caught at seed {found.scenario.seed}" if found is not None else "NOT CAUGHT"
    print(f"{mutation.name}: {caught} (within {mutation.seeds}), {time.monotonic() - begun:.1f} s", flush=True)
    return found is not None


def _first_that_shows(mutation: Mutation, arguments: argparse.Namespace) -> Verdict | None:
    seeds = [seed for seed in range(1, mutation.seeds + 1) if mutation.may_show_at(seed)]
    for verdict in verdicts(seeds, arguments.steps, 1, mutation.name):
        _progress(f"{mutation.name}: seed {verdict.scenario.seed}")
        if any(mutation.shows in problem for problem in verdict.problems):
            return verdict
    return None


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)


def _clear() -> None:
    _progress("")


if __name__ == "__main__":
    sys.exit(main())
