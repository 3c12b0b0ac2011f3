"""What distributed's own communication tests ask of a backend, and what mpi:// promises beyond them.

The scenarios are coroutines of two ranks, in tests/mpi4dask/programs/scenarios_*.py; each is a test here.
"""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
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


def test_large_plain_messages_need_no_new_memory(
    run_ranks: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    done = run_ranks("mpich", 2, "page_faults.py", str(results))
    assert results.exists(), done.stdout + done.stderr
    faults = json.loads(results.read_text())
    pages = {"bytes of 1 MB": 256, "bytes of 8 MB": 2048}  # of 4 KiB; 512 for the others
    assert {name: found for name, found in faults.items() if max(found) > pages.get(name, 512) / 2} == {}
