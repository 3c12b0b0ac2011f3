"""The stack pytorch as hidl installs it, with mpi4c10d in it, and programs of several ranks that run on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.mpi import MPICH_ON_ONE_HOST
from tests.waiting import patience

PROGRAMS = Path(__file__).parent / "programs"
Completed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def torch_python(stack_prefix: Callable[[str], Path]) -> Path:
    """A Python with PyTorch, MPICH and mpi4c10d."""
    given = os.environ.get("MPI4C10D_TEST_PYTHON")
    return Path(given) if given else stack_prefix("pytorch") / "bin" / "python"


@pytest.fixture(scope="session")
def run_program(torch_python: Path) -> Callable[..., Completed]:
    """``run_program("program.py", ...)``: run a program of tests/mpi4c10d/programs without a launcher."""

    def run(
        program: str, *arguments: str, launch: tuple[str, ...] = (), timeout: float = 300, **variables: str
    ) -> Completed:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "TORCH"))}
        return subprocess.run(
            [*launch, str(torch_python), str(PROGRAMS / program), *arguments],
            env=clean | MPICH_ON_ONE_HOST | {"OMP_NUM_THREADS": "1"} | variables,
            capture_output=True,
            text=True,
            timeout=patience(timeout),
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def run_ranks(torch_python: Path, run_program: Callable[..., Completed]) -> Callable[..., Completed]:
    """``run_ranks(2, "program.py", ...)``: run such a program under mpiexec."""

    def run(ranks: int, program: str, *arguments: str, **options: Any) -> Completed:
        launch = str(torch_python.with_name("mpiexec")), "-n", str(ranks)
        return run_program(program, *arguments, launch=launch, **options)

    return run
