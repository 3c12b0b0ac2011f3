"""Starts Python on real MPI ranks of an installed stack."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hidl_cli import process
from hidl_cli.mpi import MPICH_ON_ONE_HOST
from hidl_cli.process import Completed
from tests.waiting import patience

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
#: Starts a program on all cores of the machine, whatever its launcher and the tests were bound to.
UNBOUND = ("taskset", "f" * 256)


def run(prefix: Path, ranks: int, *words: str | Path, timeout: float = 480, **variables: str) -> Completed:
    """Run ``python WORDS`` on ``ranks`` ranks of the stack in ``prefix``; hidl_workloads is the checkout's."""
    command = [prefix / "bin" / "mpiexec", "-n", str(ranks), prefix / "bin" / "python", *words]
    environment = python_environment() | {"HIDL_WORLD_SIZE": str(ranks)} | variables
    return process.run(command, env=environment, timeout=patience(timeout), check=False)


def results(
    prefix: Path, ranks: int, directory: Path, program: str, *words: str, timeout: float = 480, **variables: str
) -> dict[str, Any]:
    """Run one of ``PROGRAMS`` in its world, to success; return the JSON document that it writes to its first word."""
    file = directory / "results.json"
    completed = run(prefix, ranks, "-m", "hidl_workloads.world", program, file, *words, timeout=timeout, **variables)
    assert completed.status == 0, completed.stderr
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def python_environment() -> dict[str, str]:
    """An environment that no launcher has been in, with the checkout and the test programs on Python's path."""
    return MPICH_ON_ONE_HOST | {
        "PATH": "/usr/bin:/bin",
        "HOME": os.environ["HOME"],
        "PYTHONPATH": f"{REPOSITORY}:{PROGRAMS}",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
