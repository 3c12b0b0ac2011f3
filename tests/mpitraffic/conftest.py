"""The recorder, built for the MPI of a stack, and programs that are run with it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from mpitraffic.build import build

from tests.conftest import REPOSITORY

LIBRARY = REPOSITORY / "libs" / "mpitraffic"
PROGRAMS = Path(__file__).parent / "programs"
Completed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def recorder(stack_prefix: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``recorder("mpi")``: the recorder for the MPI of that stack."""
    directory, built = tmp_path_factory.mktemp("recorders"), {}

    def make(stack: str) -> Path:
        if stack not in built:
            built[stack] = build(directory / f"{stack}.so", str(stack_prefix(stack) / "bin" / "mpicc"))
        return built[stack]

    return make


@pytest.fixture(scope="session")
def record(recorder: Callable[[str], Path], run_on_stack: Callable[..., Completed]) -> Callable[..., Completed]:
    """``record("mpi", 4, directory, "program.py", ...)``: run a program of this directory and record it."""

    def run(stack: str, ranks: int, directory: Path, program: str, *arguments: str, **variables: str) -> Completed:
        return run_on_stack(
            stack,
            PROGRAMS / program,
            *arguments,
            launch=("mpiexec", "-n", str(ranks), "env", f"LD_PRELOAD={recorder(stack)}"),
            PYTHONPATH=":".join(map(str, (LIBRARY, REPOSITORY, REPOSITORY / "tests" / "mpi4dask" / "programs"))),
            MPITRAFFIC_DIRECTORY=str(directory),
            **variables,
        )

    return run
