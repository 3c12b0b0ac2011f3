"""A run of hidl as the job of a ReFrame check: planned, started by somebody else, judged."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.errors import UsageError
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.record import State
from hidl_cli.validate import bridge
from hidl_cli.validate.bridge import CheckLocation, CheckRequest
from tests.conftest import Hidl


@pytest.fixture
def local(hidl_with: Callable[..., Hidl], monkeypatch: pytest.MonkeyPatch) -> CheckLocation:
    """This machine, with the stack `mpi` and directories of the test's own."""
    for name, value in hidl_with("mpi").environment.items():
        monkeypatch.setenv(name, value)
    return CheckLocation(site="local")


@pytest.fixture
def planned(local: CheckLocation) -> Plan:
    return bridge.plan(local, CheckRequest("mpi-sanity", "1-node", ranks_per_node=2))


def test_extras_keep_what_is_given() -> None:
    place = CheckLocation(site="frontera", partition="rtx", account="A1", time_limit=600.0)
    assert place.extras() == {
        "hidl_site": "frontera",
        "hidl_partition": "rtx",
        "hidl_account": "A1",
        "hidl_time_limit": 600.0,
    }
    assert CheckLocation.of(place.extras() | {"other": 1}) == place


def test_the_allocation_is_that_of_the_place() -> None:
    asked = CheckLocation(partition="rtx", account="A1", qos="high", reservation="r", time_limit=60.0).job
    assert (asked.partition, asked.account, asked.qos, asked.reservation, asked.time_limit) == (
        "rtx",
        "A1",
        "high",
        "r",
        60.0,
    )


def test_the_ranks_per_node_of_a_wish_come_first(planned: Plan) -> None:
    assert [step.placement.ranks for step in planned.steps] == [2]


def test_a_study_needs_a_smaller_scale(local: CheckLocation) -> None:
    with pytest.raises(UsageError, match="no smaller scale"):
        bridge.plan(local, CheckRequest("kmeans", "1-rank", study=True))


def test_an_unknown_scale_is_an_error(local: CheckLocation) -> None:
    with pytest.raises(UsageError):
        bridge.plan(local, CheckRequest("mpi-sanity", "1000-nodes"))


def test_a_run_that_another_starts_is_judged(planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bridge.RUNS_FILE, str(tmp_path / "runs"))
    run = bridge.begin(planned)
    assert (tmp_path / "runs").read_text() == f"{run.directory}\n"

    subprocess.run(["bash", run.script], check=True, capture_output=True)
    assert bridge.ended(run).state is State.COMPLETED
    numbers = bridge.numbers(bridge.judge(run))
    assert numbers["ranks_on_fullest_node"] == (2.0, "ranks")
    assert "efficiency" not in numbers


def test_a_run_without_an_end_is_lost(planned: Plan) -> None:
    run = bridge.begin(planned)
    bridge.submitted(run, "local", "999999999", str(run.directory))
    assert bridge.ended(run, seconds=0).state is State.LOST


def test_directives_leave_out_what_reframe_writes(planned: Plan) -> None:
    header = ("#SBATCH --job-name=x", "#SBATCH --nodes=2", "#SBATCH --time=01:00:00", "#SBATCH --gres=gpu:4")
    assert bridge.directives(replace(planned, scheduler="slurm", header=header)) == [
        "#SBATCH --nodes=2",
        "#SBATCH --gres=gpu:4",
    ]
    flux = ("# flux: --job-name=x", "# flux: --nodes=2")
    assert bridge.directives(replace(planned, scheduler="flux", header=flux)) == list(flux)
