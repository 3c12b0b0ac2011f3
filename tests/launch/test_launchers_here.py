"""Real launchers on this machine: what they start is the world that was asked for, with the values as they are."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Launch, Request
from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Family, Library
from tests.launch import steps
from tests.launch.steps import PROGRAMS
from tests.waiting import until

VALUES = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=8, max_size=8)
NASTY = ["a b", "x;y", "$HOME `id` $(id)", "'\"\\", "two\nlines\n", "\u00e9\u4e2d\U0001f600", "", "a=b,c:d"]
KINDS: list[tuple[str, Family, str]] = [("mpiexec", "mpich", "mpi"), ("mpirun", "openmpi", "openmpi")]
LOCAL = Placement(1, 2, 2, 1, bind=False)


def launch_of(name: str, family: Family, prefix: Path, words: list[str], **environment: str) -> Launch:
    request = Request(
        LOCAL,
        (str(prefix / "bin" / "python"), str(PROGRAMS / "tells.py"), *words),
        Library(family, family, prefix=str(prefix)),
        environment=environment,
        forward=("TELLS", "WITH_MPI", "HIDL_WORLD_SIZE", "STATUS", "NOT_SET", "LATER"),
        on_one_host=True,
    )
    return launcher(name).launch(request)


@pytest.mark.parametrize(("name", "family", "stack"), KINDS)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=VALUES)
@example(values=NASTY)
def test_values_and_arguments_reach_every_rank_unchanged(
    *,
    name: str,
    family: Family,
    stack: str,
    values: list[str],
    stack_prefix: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("step")
    fixed = {f"FIXED_{number}": value for number, value in enumerate(values)}
    launch = launch_of(name, family, stack_prefix(stack), values, **fixed)
    exports = {"TELLS": str(directory), "WITH_MPI": "1", "LATER": values[0], **fixed}
    ended = steps.run(steps.script(launch, 2, exports=exports), directory)
    assert ended.state == "COMPLETED", ended.stderr
    for rank in (0, 1):
        told = json.loads((directory / f"{rank}.json").read_text(encoding="utf-8"))
        assert {variable: told["environment"][variable] for variable in fixed} == fixed
        assert told["environment"]["LATER"] == values[0]
        assert told["environment"]["HIDL_WORLD_SIZE"] == "2"
        assert "NOT_SET" not in told["environment"]
        assert told["arguments"] == values
        assert told["size"] == 2


@pytest.mark.parametrize(("name", "family", "stack"), KINDS)
def test_a_rank_that_fails_gives_the_step_its_status(
    name: str, family: Family, stack: str, stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    launch = launch_of(name, family, stack_prefix(stack), [])
    ended = steps.run(steps.script(launch, 2, exports={"TELLS": str(tmp_path), "STATUS": "7"}), tmp_path)
    assert (ended.state, ended.status) == ("FAILED", 7)


@pytest.mark.parametrize(("name", "family", "stack"), KINDS)
def test_output_is_that_of_the_ranks_alone(
    name: str, family: Family, stack: str, stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    launch = launch_of(name, family, stack_prefix(stack), [])
    ended = steps.run(steps.script(launch, 2, exports={"TELLS": str(tmp_path)}), tmp_path)
    assert (ended.stdout, ended.stderr) == ("", "")


@pytest.mark.parametrize(("name", "family", "stack"), KINDS)
def test_a_surrounding_allocation_is_ignored(
    name: str, family: Family, stack: str, stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    launch = launch_of(name, family, stack_prefix(stack), [])
    slurm = {"SLURM_JOB_ID": "1", "SLURM_JOBID": "1", "SLURM_NODELIST": "no-such-node", "SLURM_NNODES": "1"}
    slurm |= {"SLURM_JOB_NODELIST": "no-such-node", "SLURM_TASKS_PER_NODE": "1", "SLURM_JOB_NUM_NODES": "1"}
    exports = {"TELLS": str(tmp_path), "WITH_MPI": "1"}
    ended = steps.run(steps.script(launch, 2, exports=exports), tmp_path, **slurm)
    assert ended.state == "COMPLETED", ended.stderr
    assert json.loads((tmp_path / "1.json").read_text())["size"] == 2


@pytest.mark.parametrize(("name", "family", "stack"), KINDS)
def test_bound_ranks_have_cores_of_their_own(
    name: str, family: Family, stack: str, stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    words = ("-c", "import os; print(sorted(os.sched_getaffinity(0)))")
    python = str(stack_prefix(stack) / "bin" / "python")
    bound = Placement(1, 2, 2, 1, bind=True)
    library = Library(family, family, prefix=str(stack_prefix(stack)))
    launch = launcher(name).launch(Request(bound, (python, *words), library, on_one_host=True))
    ended = steps.run(steps.script(launch, 2, exports={}), tmp_path)
    assert ended.state == "COMPLETED", ended.stderr
    assert len(set(ended.stdout.split("\n")[:2])) == 2


@pytest.mark.parametrize(("name", "family", "stack"), KINDS)
def test_a_terminated_step_leaves_no_rank(
    name: str, family: Family, stack: str, stack_prefix: Callable[[str], Path], tmp_path: Path
) -> None:
    prefix = stack_prefix(stack)
    words = ("-c", "import os, time; open(f'{os.getpid()}.pid', 'w'); time.sleep(100)")
    library = Library(family, family, prefix=str(prefix))
    launch = launcher(name).launch(Request(LOCAL, (str(prefix / "bin" / "python"), *words), library, on_one_host=True))
    (tmp_path / "job.sh").write_text(steps.script(launch, 2, exports={}))
    with subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, start_new_session=True) as job:
        until(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
        ranks = [Path("/proc", file.stem) for file in tmp_path.glob("*.pid")]
        job.terminate()
    assert (tmp_path / "ended").read_text() == "CANCELLED 143"
    until(lambda: not any(rank.exists() for rank in ranks))  # mpirun does not wait for those that it has killed
