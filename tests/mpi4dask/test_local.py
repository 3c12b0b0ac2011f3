"""`mpi4dask.LocalMPICluster`: for a process that is no rank, and nothing stays when it has gone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_cli import process
from hidl_cli.process import Completed
from tests.tiers import deep
from tests.waiting import patience
from tests.workloads import ranks

PROGRAM = Path(__file__).parent / "programs" / "notebook.py"
Notebook = Callable[..., Completed]


@pytest.fixture
def notebook(stack_prefix: Callable[[str], Path], tmp_path: Path) -> Notebook:
    def run(how: str, *, stack: str = "mpi4dask") -> Completed:
        command = [stack_prefix(stack) / "bin" / "python", PROGRAM, how]
        environment = ranks.python_environment() | {"TMPDIR": str(tmp_path)}
        return process.run(command, env=environment, timeout=patience(120), check=False)

    return run


def told(completed: Completed) -> dict[str, Any]:
    assert completed.stdout, completed.stderr
    return dict(json.loads(completed.stdout.splitlines()[0]))


def gone(pids: list[int]) -> bool:
    """Wait for the end of processes that are not ours; True when they have all ended."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with os.fdopen(descriptor):
            import select

            if not select.select([descriptor], [], [], 30)[0]:
                return False
    return True


@pytest.mark.parametrize("stack", ["mpi4dask", deep("mpi4dask-openmpi")])
def test_workers_exchange_by_mpi_and_the_notebook_stays_outside(notebook: Notebook, stack: str) -> None:
    completed = notebook("well", stack=stack)
    assert completed.status == 0, completed.stderr
    found = told(completed)
    assert found["total"] == sum(range(2_000_000))
    assert found["by_mpi"] > 16_000_000
    assert not found["in_mpi"]
    assert gone(found["pids"])
    assert not Path(found["directory"]).exists()


@pytest.mark.parametrize(("how", "status"), [("raises", 1), deep("killed", -signal.SIGKILL)])
def test_the_ranks_end_with_the_notebook_whatever_ends_it(notebook: Notebook, how: str, status: int) -> None:
    completed = notebook(how)
    found = told(completed)
    assert completed.status in (status, 128 - status)
    assert gone(found["pids"])
    assert not Path(found["directory"]).exists()


def test_ranks_that_do_not_come_up_are_reported_with_their_words(notebook: Notebook) -> None:
    completed = notebook("bad-option")
    assert completed.status == 1
    assert "ClusterFailed: the cluster ended with status" in completed.stderr
    assert "No such option" in completed.stderr
