"""Real launchers inside real Slurm jobs on four nodes: every rank is there, in one world, with values as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Launch, Request
from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Family, Library
from tests.cluster.cluster import LivingCluster
from tests.launch import steps
from tests.launch.steps import PROGRAMS, Ended
from tests.tiers import deep
from tests.waiting import until

STACKS = {"mpich": "mpi", "openmpi": "openmpi"}
NASTY = "a b;x;$HOME `id` '\"\\ *\n\u00e9\u4e2d\n"
FOUR = Placement(4, 2, 8, 1, bind=True)
KINDS: list[Any] = [
    ("srun", "mpich", ()),
    deep("srun", "openmpi", ()),
    ("mpiexec", "mpich", ()),
    deep("mpiexec", "mpich", ("-launcher", "ssh")),
    ("mpirun", "openmpi", ()),
]

pytestmark = pytest.mark.usefixtures("cluster")


class Jobs:
    """Runs one launch in a job of ``FOUR``'s size."""

    def __init__(self, cluster: LivingCluster, stack_prefix: Callable[[str], Path], directory: Path) -> None:
        self._cluster = cluster
        self._stack_prefix = stack_prefix
        self.directory = directory

    def run(
        self, name: str, family: Family, *arguments: str, where: Placement = FOUR, options: str = "", **mpi: Any
    ) -> Ended:
        """Every rank checks the world, and then tells what reached it."""
        prefix = self._stack_prefix(STACKS[family])
        check = ("-m", "hidl_workloads.world", "mpi4py", str(PROGRAMS / "tells.py"))
        request = Request(
            where,
            (str(prefix / "bin" / "python"), *check, *arguments),
            replace(Library(family, family, prefix=str(prefix)), **mpi),
            environment={"FIXED": NASTY},
            forward=("TELLS", "WITH_MPI", "HIDL_WORLD_SIZE", "NOT_SET"),
            hostfile="hosts",
        )
        exports = {"TELLS": str(self.directory), "WITH_MPI": "1", "FIXED": NASTY}
        text = steps.script(launcher(name).launch(request), where.ranks, hosts=None, exports=exports)
        return self._end(self._submit(text, options))

    def cancel(self, name: str, family: Family, *arguments: str) -> Ended:
        """Cancel ranks that sleep."""
        prefix = self._stack_prefix(STACKS[family])
        sleep = "import os, sys, time; from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); "
        sleep += "open(os.path.join(os.environ['TELLS'], f'{MPI.COMM_WORLD.rank}.json'), 'w'); time.sleep(100)"
        library = Library(family, family, prefix=str(prefix), launcher_arguments={name: arguments})
        request = Request(
            FOUR, (str(prefix / "bin" / "python"), "-c", sleep), library, forward=("TELLS",), hostfile="hosts"
        )
        exports = {"TELLS": str(self.directory)}
        job = self._submit(steps.script(launcher(name).launch(request), FOUR.ranks, hosts=None, exports=exports))
        return self._cancel(job, FOUR.ranks)

    def cancel_deaf(self, status: int) -> Ended:
        """Cancel a job whose script never gets the signal; its launch ends with ``status`` when Slurm ends the job."""
        ends = f"touch {self.directory}/0.json; until squeue -hj $SLURM_JOB_ID -o %T | grep -q COMPLETING; do :; done"
        script = steps.script(Launch(("sh", "-c", f"{ends}; exit {status}")), 1, hosts=None, exports={})
        (self.directory / "deaf.sh").write_text(script, encoding="utf-8")
        return self._cancel(self._submit("exec env --block-signal=TERM bash deaf.sh\n"), 1)

    def left(self) -> dict[str, list[str]]:
        """The processes of jobs on each node that has any."""
        found = {node: self._cluster.processes(node) for node in self._cluster.nodes}
        return {node: processes for node, processes in found.items() if processes}

    def told(self) -> list[dict[str, Any]]:
        """What each rank told, in order."""
        files = sorted(self.directory.glob("*.json"), key=lambda file: int(file.stem))
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]

    def _submit(self, text: str, options: str = "") -> str:
        head = f"#!/bin/bash\n#SBATCH --nodes=4 --ntasks-per-node=2 {options}\n"
        (self.directory / "job.sh").write_text(head + text, encoding="utf-8")
        where = f"--chdir={self.directory}"
        clean = ("env", "-i", "PATH=/usr/bin:/bin", f"SLURM_CONF={self._cluster.conf}", f"HOME={Path.home()}")
        sbatch = (
            "sbatch",
            "--parsable",
            where,
            "--output=out",
            "--error=err",
            "--time=10",
            str(self.directory / "job.sh"),
        )
        submitted = self._cluster(*clean, *sbatch)
        assert submitted.returncode == 0, submitted.stderr
        return submitted.stdout.strip()

    def _cancel(self, job: str, ranks: int) -> Ended:
        until(lambda: len(list(self.directory.glob("*.json"))) == ranks)
        self._cluster("scancel", job)
        return self._end(job)

    def _end(self, job: str) -> Ended:
        until(lambda: not self._cluster("squeue", "-h", "-j", job).stdout.strip())
        state, _, status = (self.directory / "ended").read_text().partition(" ")
        out, err = ((self.directory / name).read_text(errors="replace") for name in ("out", "err"))
        return Ended(state, int(status), out, err)


@pytest.fixture
def jobs(cluster: LivingCluster, stack_prefix: Callable[[str], Path], tmp_path: Path) -> Jobs:
    return Jobs(cluster, stack_prefix, tmp_path)


@pytest.mark.parametrize(("name", "family", "arguments"), KINDS)
def test_all_ranks_form_one_world_with_exact_values(
    jobs: Jobs, name: str, family: Family, arguments: tuple[str, ...]
) -> None:
    ended = jobs.run(name, family, NASTY, launcher_arguments={name: arguments})
    assert ended.state == "COMPLETED", ended.stderr
    told = jobs.told()
    assert [(rank["size"], rank["arguments"]) for rank in told] == [(8, [NASTY])] * 8
    assert [rank["environment"]["FIXED"] for rank in told] == [NASTY] * 8
    assert [rank["environment"]["HIDL_WORLD_SIZE"] for rank in told] == ["8"] * 8
    assert [rank["host"] for rank in told] == [f"node{number}" for number in (1, 1, 2, 2, 3, 3, 4, 4)]


@pytest.mark.parametrize(("name", "family"), [deep("srun", "mpich"), ("mpiexec", "mpich"), deep("mpirun", "openmpi")])
def test_a_step_takes_the_first_nodes_of_a_larger_job(jobs: Jobs, name: str, family: Family) -> None:
    ended = jobs.run(name, family, where=Placement(2, 2, 4, 1, bind=True))
    assert ended.state == "COMPLETED", ended.stderr
    assert [(rank["size"], rank["host"]) for rank in jobs.told()] == [
        (4, "node1"),
        (4, "node1"),
        (4, "node2"),
        (4, "node2"),
    ]


@pytest.mark.parametrize(("name", "family"), [deep("srun", "mpich"), deep("mpiexec", "mpich"), ("mpirun", "openmpi")])
def test_ranks_that_share_cores_start(jobs: Jobs, name: str, family: Family) -> None:
    ended = jobs.run(name, family, where=Placement(4, 3, 12, 4, bind=False))
    assert ended.state == "COMPLETED", ended.stderr
    assert [rank["size"] for rank in jobs.told()] == [12] * 12


def test_several_threads_have_several_cores(jobs: Jobs) -> None:
    ended = jobs.run("srun", "mpich", where=Placement(4, 2, 8, 2, bind=True), options="--cpus-per-task=2")
    assert ended.state == "COMPLETED", ended.stderr
    assert [rank["environment"]["SLURM_CPUS_PER_TASK"] for rank in jobs.told()] == ["2"] * 8


@pytest.mark.deep
@pytest.mark.parametrize(("name", "family", "arguments"), KINDS)
def test_ranks_get_the_environment_even_if_the_job_exports_none(
    jobs: Jobs, name: str, family: Family, arguments: tuple[str, ...]
) -> None:
    ended = jobs.run(name, family, options="--export=NONE", launcher_arguments={name: arguments})
    assert ended.state == "COMPLETED", ended.stderr
    assert jobs.told()[7]["environment"]["FIXED"] == NASTY


@pytest.mark.parametrize(("family", "wrong"), [("mpich", "none"), ("openmpi", "pmi2"), deep("openmpi", "none")])
def test_a_type_of_mpi_that_the_library_does_not_know_ends_with_86(jobs: Jobs, family: Family, wrong: str) -> None:
    ended = jobs.run("srun", family, srun_mpi=wrong)
    assert (ended.state, ended.status) == ("FAILED", 86)
    assert ended.stderr.count("8 singletons") == 1
    assert jobs.told() == []


@pytest.mark.parametrize(("name", "family", "arguments"), KINDS)
def test_a_job_that_is_cancelled_leaves_no_process_on_any_node(
    jobs: Jobs, cluster: LivingCluster, name: str, family: Family, arguments: tuple[str, ...]
) -> None:
    ended = jobs.cancel(name, family, *arguments)
    assert (ended.state, ended.status) == ("CANCELLED", 143)
    until(lambda: not jobs.left())  # Open MPI's daemons end when they find that mpirun is gone


@pytest.mark.parametrize("status", [255, 0])
def test_a_launch_that_ends_before_the_script_is_told_was_cancelled(jobs: Jobs, status: int) -> None:
    ended = jobs.cancel_deaf(status)
    assert (ended.state, ended.status) == ("CANCELLED", 143)
