"""The stack pytorch as hidl installs it, with mpi4c10d in it, and programs of several ranks that run on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY

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


@pytest.fixture(scope="session")
def on_torch_214() -> dict[str, str]:
    """Options of ``run_ranks`` for PyPI's build of PyTorch 2.14, for which mpi4c10d has another adapter.

    Its environment has 5 GB and is kept in the user's cache; HIDL_TEST_PYTHON_TORCH_214 names another Python.
    """
    variable, uv = "HIDL_TEST_PYTHON_TORCH_214", str(Path(sys.executable).with_name("uv"))
    if variable not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hidl-tests" / "torch-2.14"
        if not (cache / "bin" / "python").exists():
            subprocess.run([uv, "venv", "-q", "--python", sys.executable, cache], check=True)
        os.environ[variable] = str(cache / "bin" / "python")
        packages = ("torch==2.14.*", "numpy", "mpich", "mpi4py")
        subprocess.run([uv, "pip", "install", "-q", "--python", os.environ[variable], *packages], check=True)
    ours = ("--no-deps", "--reinstall", str(REPOSITORY / "libs" / "mpi4c10d"))
    subprocess.run([uv, "pip", "install", "-q", "--python", os.environ[variable], *ours], check=True)
    return {"stack": "torch-214"}
