"""The stack pytorch as hidl installs it, with mpi4c10d in it, and programs of several ranks that run on it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
Completed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def torch_python(stack_python: Callable[[str], Path]) -> Path:
    """A Python with PyTorch, MPICH and mpi4c10d."""
    return stack_python("pytorch")


@pytest.fixture(scope="session")
def run_program(run_on_stack: Callable[..., Completed]) -> Callable[..., Completed]:
    """``run_program("program.py", ...)``: run a program of tests/mpi4c10d/programs without a launcher."""

    def run(program: str, *arguments: str, stack: str = "pytorch", **options: Any) -> Completed:
        return run_on_stack(stack, PROGRAMS / program, *arguments, **{"OMP_NUM_THREADS": "1"} | options)

    return run


@pytest.fixture(scope="session")
def run_ranks(run_program: Callable[..., Completed]) -> Callable[..., Completed]:
    """``run_ranks(2, "program.py", ...)``: run such a program under mpiexec."""

    def run(ranks: int, program: str, *arguments: str, **options: Any) -> Completed:
        return run_program(program, *arguments, launch=("mpiexec", "-n", str(ranks)), **options)

    return run


@pytest.fixture(scope="session")
def on_open_mpi(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Options of ``run_ranks`` for Open MPI: its stack, and the packages of the stack pytorch but for MPI."""
    packages = tmp_path_factory.mktemp("packages")
    (installed,) = torch_python.parent.parent.glob("lib/python*/site-packages")
    for package in installed.iterdir():
        if not package.name.startswith(("mpi4py", "mpich")):
            (packages / package.name).symlink_to(package)
    return {"stack": "openmpi", "PYTHONPATH": str(packages)}
