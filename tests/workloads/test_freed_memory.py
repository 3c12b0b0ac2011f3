"""What a process frees stays with it, or goes back to the kernel at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Blocks of 40 MiB: more than what glibc keeps by itself. A page that was faulted in once and kept does not fault again.
PROGRAM = """
import ctypes, resource, sys
from hidl_workloads import freed_memory

BLOCK = 40 * 2**20
acts = {"keep": freed_memory.keep, "give back": freed_memory.give_back}
kept = acts[sys.argv[1]]() if sys.argv[1] in acts else None
malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def step():
    block = malloc(ctypes.c_size_t(BLOCK))
    ctypes.memset(block, 1, BLOCK)
    free(block)

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def steps(how: str, **environment: str) -> tuple[str, int]:
    """Return what ``keep`` said, and the page faults of five steps."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, check=True)
    said, faults = done.stdout.split()
    return said, int(faults)


def test_a_step_faults_nothing_in_that_it_had_before() -> None:
    """With glibc's own thresholds each step does, by pages of 4 KiB or, where the kernel gives such, of 2 MiB."""
    _, by_itself = steps("as it is")
    said, kept = steps("keep")
    assert said == "True"
    assert by_itself >= 5 * 20
    assert kept < 20


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_thresholds_of_the_environment_are_left_alone(name: str) -> None:
    """Somebody who sets them gets what they set."""
    said, faults = steps("keep", **{name: "131072"})
    assert said == "False"
    assert faults >= 5 * 20


def test_glibc_tunables_are_left_alone() -> None:
    """Their way to set the same."""
    assert steps("keep", GLIBC_TUNABLES="glibc.malloc.mmap_threshold=131072")[0] == "False"


def test_a_step_faults_everything_in_where_memory_is_given_back() -> None:
    said, faults = steps("give back")
    assert said == "True"
    assert faults >= 5 * 20
