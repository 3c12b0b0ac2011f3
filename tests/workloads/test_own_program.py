"""The starter of users' programs on one rank: what it tells them, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hidl_workloads.launcher_environment import ranks_of_srun
from hidl_workloads.own_program import correct_environment, encode, rank_variables
from tests.waiting import patience

TWO = {"HIDL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("told", "rank", "local", "local_size"),
    [
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, "1", "0", "1"),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
            | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
            "1",
            "1",
            "2",
        ),
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}
            | {"SLURM_STEP_TASKS_PER_NODE": "1(x2)"},
            "1",
            "0",
            "1",
        ),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_RANK": "0"}, "0", "0", None),
    ],
    ids=["mpiexec", "mpirun in Slurm", "srun", "mpirun_rsh"],
)
def test_a_rank_gets_torchruns_variables(told: dict[str, str], rank: str, local: str, local_size: str | None) -> None:
    expected = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": local_size}
    variables = rank_variables(TWO | told)
    assert {name: variables.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, "started 1 rank.s., expected 2"),
        ({}, "no launcher variable found"),
    ],
)
def test_a_launcher_that_reports_another_world_is_an_error(told: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        rank_variables(TWO | told)


#: The step of a Slurm job on two nodes that has started a launcher's daemons; this one is on the second node.
DAEMON = {
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_MPI_TYPE": "none",
}


@pytest.mark.parametrize(
    ("launcher", "dropped"),
    [
        ({"PMI_RANK": "5", "PMI_SIZE": "6", "MPI_LOCALRANKID": "1", "FLUX_TASK_RANK": "1"}, "FLUX_TASK_"),
        (
            {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
            | {"PMIX_RANK": "5", "PMIX_NAMESPACE": "prte.1", "PMI_RANK": "1", "PMI_SIZE": "2"},
            "PMI_",
        ),
    ],
    ids=["mpiexec", "mpirun under srun --mpi=pmi2"],
)
def test_the_environment_of_a_rank_describes_that_rank(launcher: dict[str, str], dropped: str) -> None:
    launch = {"HIDL_WORLD_SIZE": "6", "HIDL_RANKS_PER_NODE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "20000"}
    environment = DAEMON | launcher | launch
    environment |= rank_variables(environment)
    correct_environment(environment, ["node1", "node2"])
    assert {name: environment[name] for name in DAEMON if name in environment} == {
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_NTASKS": "6",
        "SLURM_STEP_NUM_TASKS": "6",
        "SLURM_STEP_TASKS_PER_NODE": "4,2",
        "SLURM_STEP_NODELIST": "node1,node2",
    }
    assert (environment["NODE_RANK"], environment["GROUP_RANK"]) == ("1", "1")
    assert not [name for name in environment if name.startswith(dropped)]
    found = json.loads(environment["TF_CONFIG"])
    assert found["task"] == {"type": "worker", "index": 5}
    assert found["cluster"]["worker"] == [
        *(f"node1:{port}" for port in range(20001, 20005)),
        *(f"node2:{port}" for port in (20001, 20002)),
    ]


def test_variables_of_the_launcher_itself_stay() -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    step |= {"SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_CPU_BIND": "none", "PMIX_RANK": "1"}
    environment = step | TWO | {"HIDL_RANKS_PER_NODE": "1"}
    environment |= rank_variables(environment)
    correct_environment(environment, ["node1", "node2"])
    assert step.items() <= environment.items()


def test_ranks_that_are_not_in_blocks_get_no_cluster_of_tensorflow() -> None:
    cyclic = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NODEID": "1"}
    environment = cyclic | {"HIDL_WORLD_SIZE": "4", "HIDL_RANKS_PER_NODE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "2"}
    environment |= rank_variables(environment)
    correct_environment(environment, ["a", "b"])
    assert "TF_CONFIG" not in environment


def test_one_rank_needs_no_launcher() -> None:
    assert rank_variables({"HIDL_WORLD_SIZE": "1"}) == {"RANK": "0", "WORLD_SIZE": "1"}


@pytest.mark.parametrize(("node", "ranks"), [("0", 2), ("2", 2), ("3", 1), ("4", None), ("", None)])
def test_srun_reports_the_ranks_of_each_node(node: str, ranks: int | None) -> None:
    assert ranks_of_srun({"SLURM_NODEID": node, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}) == ranks


def started(directory: Path | str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The starter, run as one rank of one."""
    command = [sys.executable, "-m", "hidl_workloads.own_program", *encode([str(directory), *words])]
    environment = {"PATH": "/usr/bin:/bin", "HIDL_WORLD_SIZE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)


def test_it_becomes_the_program(tmp_path: Path) -> None:
    ended = started(tmp_path, "sh", "-c", 'echo "$RANK $PWD"; exit 3')
    assert (ended.returncode, ended.stdout) == (3, f"0 {tmp_path}\n")


@pytest.mark.parametrize(
    ("directory", "word", "status", "said"),
    [
        ("/no/such", "true", 125, "directory that all nodes share"),
        ("/", "no-such-program", 127, "no-such-program: No such file or directory in /"),
        ("/", "/etc/passwd", 126, "/etc/passwd: Permission denied"),
    ],
)
def test_what_it_cannot_start_it_names(directory: str, word: str, status: int, said: str) -> None:
    ended = started(directory, word)
    assert ended.returncode == status
    assert said in ended.stderr


def test_a_wrong_world_ends_as_it_does_with_mpi() -> None:
    ended = started("/", "true", HIDL_WORLD_SIZE="2", PMI_SIZE="1", PMI_RANK="0")
    assert ended.returncode == 86
    assert "wrong world: the launcher started 1 rank(s), expected 2" in ended.stderr


def test_a_program_that_reads_its_input_finds_the_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hidl_workloads.own_program", *encode([str(tmp_path), "cat"])]
    environment = {**os.environ, "HIDL_WORLD_SIZE": "1", "PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as rank:  # nothing is ever written to it
        assert rank.wait(timeout=patience(60)) == 0
