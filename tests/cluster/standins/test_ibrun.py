"""The stand-in for TACC's ibrun, with real ranks on the nodes of a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hidl_twin
import pytest

from hidl_cli.errors import ProcessFailed
from tests.cluster.cluster import SHOWN, LivingCluster
from tests.tiers import deep

pytestmark = pytest.mark.real

STANDIN = Path(hidl_twin.__file__).parent / "standins" / "ibrun"
SELF = "ibrun: this is a stand-in for TACC's (hidl cluster up)"
WORLD = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
mine = (world.rank, MPI.Get_processor_name(), len(os.sched_getaffinity(0)), os.environ.get("N"))
told = world.gather(mine)
if world.rank == 0:
    print(world.size, *told, sep="\\n")
"""
#: Rank 1 ends in error after a barrier; the others wait outside of MPI, for a peer's end may crash a rank within it.
DYING = """
import os, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    os._exit(7)
time.sleep(3600)
"""
Ibrun = Callable[..., list[str]]


@pytest.fixture
def ibrun(cluster: LivingCluster, stack_prefix: Callable[[str], Path]) -> Ibrun:
    """Calls it on the first of two nodes that a job has, with two tasks on each; returns the lines of its stdout."""

    def call(*words: str, stack: str = "mpi", family: str = "impi", **variables: str) -> list[str]:
        job = {
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_TASKS_PER_NODE": "2(x2)",
            "TACC_FAMILY_MPI": family,
            "PATH": f"{stack_prefix(stack)}/bin:{os.environ['PATH']}",
        }
        set_ = [f"{name}={value}" for name, value in (job | variables).items()]
        return cluster.on("node1", "env", *set_, sys.executable, str(STANDIN), *words).splitlines()

    return call


def ranks(lines: list[str]) -> list[str]:
    """What the ranks printed, without TACC's own lines."""
    return [line for line in lines if not line.startswith("TACC: ")]


@pytest.mark.parametrize(("stack", "family"), [("mpi", "mvapich2"), deep("mpi", "impi"), deep("openmpi", "openmpi")])
def test_ranks_fill_the_slots_of_the_job_and_get_its_environment(ibrun: Ibrun, stack: str, family: str) -> None:
    lines = ibrun("python", "-c", WORLD, stack=stack, family=family, N="a b", MV2_ENABLE_AFFINITY="0")
    size, *told = ranks(lines)
    assert size == "4"
    assert [line.split(", ")[1] for line in told] == ["'node1'", "'node1'", "'node2'", "'node2'"]
    assert all(line.endswith(", 'a b')") for line in told)


def test_n_takes_so_many_slots_and_o_skips_so_many(ibrun: Ibrun) -> None:
    size, *told = ranks(ibrun("-n", "2", "-o", "1", "python", "-c", WORLD))
    assert (size, [line.split(", ")[1] for line in told]) == ("2", ["'node1'", "'node2'"])


def test_it_reports_what_tacc_s_reports(ibrun: Ibrun) -> None:
    lines = ibrun("-n", "1", "echo", "x")
    assert lines[:2] == ["TACC:  Starting up job 77", "TACC:  Starting parallel tasks..."]
    assert lines[2:] == ["x", "TACC:  Shutdown complete. Exiting."]


def test_it_ends_with_the_status_of_the_ranks(ibrun: Ibrun) -> None:
    with pytest.raises(ProcessFailed) as failed:
        ibrun("-n", "2", "sh", "-c", "exit 5")
    assert failed.value.status == 5
    assert "TACC:  MPI job exited with code: 5" in failed.value.output


@pytest.mark.parametrize(
    ("variables", "cores"),
    [
        ({"family": "impi", "I_MPI_PIN_DOMAIN": "1:compact"}, {"1"}),
        ({"family": "mvapich2", "MV2_CPU_BINDING_POLICY": "hybrid", "MV2_THREADS_PER_PROCESS": "1"}, {"1"}),
        ({"family": "mvapich2"}, {"1"}),
        ({"family": "impi"}, {str(SHOWN)}),
    ],
)
def test_the_library_s_own_variables_bind(ibrun: Ibrun, variables: dict[str, str], cores: set[str]) -> None:
    _, *told = ranks(ibrun("python", "-c", WORLD, **variables))
    assert {line.split(", ")[2] for line in told} == cores


def test_open_mpi_binds_as_my_openmpi_options_say_on_every_node(ibrun: Ibrun) -> None:
    options = "--map-by ppr:2:node:PE=1:HWTCPUS --bind-to hwthread"
    size, *told = ranks(ibrun("python", "-c", WORLD, stack="openmpi", family="openmpi", MY_OPENMPI_OPTIONS=options))
    assert (size, {line.split(", ")[2] for line in told}) == ("4", {"1"})


def test_a_rank_that_dies_ends_those_that_wait_for_it_on_other_nodes(ibrun: Ibrun) -> None:
    with pytest.raises(ProcessFailed) as failed:
        ibrun("python", "-c", DYING)
    assert failed.value.status == 7


def test_words_and_values_arrive_as_they_are(ibrun: Ibrun) -> None:
    awkward = 'it\'s $HOME; "x"  `y`'
    lines = ranks(ibrun("sh", "-c", 'printf "<%s> <%s>\\n" "$1" "$N"', "sh", awkward, N=awkward))
    assert lines == [f"<{awkward}> <{awkward}>"] * 4


def test_task_affinity_gives_each_rank_its_share(ibrun: Ibrun) -> None:
    _, *told = ranks(ibrun("task_affinity", "python", "-c", WORLD, family="mvapich2"))
    assert {line.split(", ")[2] for line in told} == {str(SHOWN // 2)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-n", "5", "true"], "5 ranks from slot 0 on exceed the job's 4 slots"),
        (["-n", "2", "-o", "3", "true"], "2 ranks from slot 3 on exceed"),
        (["-n", "x", "true"], "-n requires a number, got 'x'"),
        (["-hosts", "node1", "true"], "unknown option -hosts"),
        (["-n", "1"], "no program"),
    ],
)
def test_what_cannot_be_ends_with_status_1(ibrun: Ibrun, words: list[str], said: str) -> None:
    with pytest.raises(ProcessFailed) as failed:
        ibrun(*words)
    assert failed.value.status == 1
    assert said in failed.value.output


def test_without_a_module_it_starts_nothing(ibrun: Ibrun) -> None:
    with pytest.raises(ProcessFailed, match="status 1") as failed:
        ibrun("true", family="")
    assert "no MPI module loaded" in failed.value.output


def test_outside_of_a_job_it_starts_nothing() -> None:
    environment = {"PATH": os.environ["PATH"], "TACC_FAMILY_MPI": "impi"}
    done = subprocess.run(
        [sys.executable, str(STANDIN), "true"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        [SELF, "ibrun: not in a job: ibrun runs on compute nodes only"],
    )
