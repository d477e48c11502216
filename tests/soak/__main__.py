"""`python -m soak`: the soak by hand; one JSON object at the end, and exit code 1 where something grew."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from .figures import MIB, Sample
from .run import Load, soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default %(default)s)")
    parser.add_argument("--version-mib", type=float, default=20.0, help="size of a version (default %(default)s)")
    parser.add_argument("--versions-per-s", type=float, default=4.0, help="default %(default)s")
    parser.add_argument("--puts-per-s", type=float, default=50.0, help="default %(default)s")
    arguments = parser.parse_args()
    load = Load(
        seconds=60 * arguments.minutes,
        version_bytes=int(arguments.version_mib * MIB),
        versions_per_s=arguments.versions_per_s,
        puts_per_s=arguments.puts_per_s,
    )
    with tempfile.TemporaryDirectory(prefix="paramstream-soak-") as folder:
        result = soak(load, Path(folder), _show)
    print(json.dumps(result))
    return 0 if result["flat"] else 1


def _show(sample: Sample) -> None:
    """Progress, on a terminal or into a file that is watched."""
    memory = ", ".join(
        f"{name} {sample.rss_bytes[name] / MIB:.0f} MiB {sample.descriptors[name]} fds" for name in sample.rss_bytes
    )
    log = f"log {sample.weight_bytes / MIB:.0f} + {sample.state_bytes / MIB:.1f} MiB"
    print(f"{sample.at_s:6.1f} s: {memory}; {log}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
