"""`mpi4dask.initialize`: a cluster on real ranks, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.process import Completed
from tests.tiers import deep
from tests.workloads import ranks

PROGRAM = Path(__file__).parent / "programs" / "cluster.py"
#: As root and on few cores, Open MPI starts ranks only if it is told that this is meant.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
TOTAL = sum(range(2_000_000))

Start = Callable[..., Completed]


@pytest.fixture
def start(stack_prefix: Callable[[str], Path]) -> Start:
    def run(how: str, *, stack: str = "mpi4dask", number: int = 4) -> Completed:
        return ranks.run(stack_prefix(stack), number, PROGRAM, how, timeout=120, **OPEN_MPI)

    return run


def seen(completed: Completed) -> dict[str, Any]:
    (line,) = (line for line in completed.stdout.splitlines() if line.startswith("{"))
    return dict(json.loads(line))


@pytest.mark.parametrize("stack", ["mpi4dask", deep("mpi4dask-openmpi")])
def test_ranks_make_a_cluster_whose_data_go_by_mpi_and_whose_counters_are_shown(start: Start, stack: str) -> None:
    completed = start("well", stack=stack)
    assert completed.status == 0, completed.stderr
    found = seen(completed)
    assert (found["total"], found["protocols"], found["names"]) == (TOTAL, ["mpi"], [2, 3])
    assert found["received"] > 16_000_000
    assert found["sent_by_mpi"] > 16_000_000
    assert float(found["prometheus"][0].split()[-1]) > 0


@pytest.mark.parametrize(("how", "status"), [("raises", 1), deep("exits", 3)])
def test_when_the_client_fails_all_ranks_end_and_the_status_is_its(start: Start, how: str, status: int) -> None:
    completed = start(how)
    assert completed.status == status
    assert seen(completed)["total"] == TOTAL
    assert completed.stderr.count("LookupError: the client failed") == (how == "raises")


@pytest.mark.deep
def test_without_exit_the_other_ranks_return_when_the_client_shuts_the_cluster_down(start: Start) -> None:
    completed = start("returns")
    assert completed.status == 0, completed.stderr
    assert {line for line in completed.stdout.splitlines() if "returned" in line} == {
        f"rank {rank} returned" for rank in (0, 2, 3)
    }


def test_a_worker_that_cannot_start_ends_all_ranks(start: Start) -> None:
    completed = start("bad-worker", number=3)
    assert completed.status != 0
    assert "no_such_option" in completed.stderr
    assert "mpi4dask: rank 2 failed (above); all are ended." in completed.stderr


def test_two_ranks_are_too_few_and_reported_so(start: Start) -> None:
    completed = start("well", number=2)
    assert completed.status != 0
    assert "requires at least 3 ranks" in completed.stderr


def test_a_restart_is_refused_and_the_cluster_goes_on(start: Start) -> None:
    completed = start("restarts")
    assert completed.status == 0, completed.stderr
    assert completed.stdout.count("restart would end 2 workers that are MPI ranks and cannot be started again") == 1
    assert seen(completed)["total"] == TOTAL
