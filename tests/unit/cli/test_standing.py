"""What a standing process does for itself."""

import platform
import subprocess
import sys

import pytest

ROUNDS_OF_MEMORY = """
import resource
from paramstream.cli.standing import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def round_of_memory():
    held = [bytearray(b"1") * 800_000 for _ in range(16)]

if {keeps}:
    keep_freed_memory()
round_of_memory()
before = faults()
for _ in range(4):
    round_of_memory()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    given_back, kept = (
        int(subprocess.check_output([sys.executable, "-c", ROUNDS_OF_MEMORY.format(keeps=keeps)]))
        for keeps in (False, True)
    )
    pages = 4 * 16 * 800_000 // 4096
    assert given_back > pages // 2
    assert kept < pages // 20
