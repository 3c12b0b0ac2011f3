"""What distributed's own communication tests ask of a backend, and what mpi:// promises beyond them.

The scenarios are coroutines of two ranks, in tests/mpi4dask/programs/scenarios_*.py; each is a test here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest

from tests.mpi4dask.conftest import PROGRAMS, WAYS
from tests.tiers import deep


def scenarios() -> list[str]:
    """Their names, read from the programs: the tests' own Python has neither MPI nor distributed."""
    return [
        node.name
        for file in sorted(PROGRAMS.glob("scenarios_*.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.AsyncFunctionDef) and [argument.arg for argument in node.args.args] == ["pair"]
    ]


@pytest.mark.parametrize("scenario", scenarios())
@pytest.mark.parametrize("way", [way if way == "mpich" else deep(way) for way in WAYS])
def test_scenario(way: str, scenario: str, outcomes: Callable[[str], Any]) -> None:
    assert outcomes(way)[scenario] == ["ok", "ok"]
