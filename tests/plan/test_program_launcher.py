"""Programs that start processes themselves are found in a command, and start once per node or are rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hidl_cli.errors import UsageError
from hidl_cli.plan.options import RunOptions
from hidl_cli.plan.program_launcher import find_launcher, processes_per_node
from hidl_workloads.own_program import with_rendezvous


@pytest.mark.parametrize(
    ("command", "name", "words"),
    [
        (["torchrun", "--nproc-per-node=2", "a.py"], "torchrun", ("--nproc-per-node=2", "a.py")),
        (["/opt/bin/torchrun", "a.py"], "torchrun", ("a.py",)),
        (["env", "A=1", "torchrun", "a.py"], "torchrun", ("a.py",)),
        (["env", "-u", "B", "A=1", "nice", "-n", "5", "mpirun", "./a"], "mpirun", ("./a",)),
        (["timeout", "-k", "5", "600", "time", "-p", "srun", "./a"], "srun", ("./a",)),
        (["numactl", "-N", "0", "--localalloc", "taskset", "-c", "0-3", "mpiexec", "./a"], "mpiexec", ("./a",)),
        (["python3.11", "-u", "-m", "torch.distributed.run", "a.py"], "torchrun", ("a.py",)),
        (["accelerate", "launch", "a.py"], "accelerate launch", ("a.py",)),
        (["deepspeed", "a.py"], "deepspeed", ("a.py",)),
        (["flux", "run", "-n2", "a"], "flux run", ("-n2", "a")),
        (["bash", "-c", "cd x && torchrun a.py"], "torchrun", ("a.py",)),
        (["bash", "-lc", "set -e\nif true; then\n  mpirun -np 2 ./a; fi"], "mpirun", ("-np", "2", "./a")),
        (["sh", "-c", "A=1 horovodrun \\\n -np 4 python a.py"], "horovodrun", ("-np", "4", "python", "a.py")),
    ],
)
def test_a_launcher_is_found(command: list[str], name: str, words: tuple[str, ...]) -> None:
    found = find_launcher(command)
    assert found is not None
    assert (found.name, found.words) == (name, words)


@pytest.mark.parametrize(
    "command",
    [
        ["python", "torchrun.py"],
        ["python", "train.py", "-m", "torch.distributed.run"],
        ["python", "-m", "train"],
        ["bash", "-c", "echo use mpiexec -n 2"],
        ["bash", "-c", "# mpiexec -n 2\npython a.py"],
        ["accelerate", "config"],
        ["./solver", "mpirun"],
    ],
)
def test_other_programs_are_left_alone(command: list[str]) -> None:
    assert find_launcher(command) is None


def test_the_script_of_a_shell_is_read(tmp_path: Path) -> None:
    (tmp_path / "go.sh").write_text("#!/bin/bash\nexport A=1\nexec torchrun --nproc_per_node 3 a.py\n")
    for command in (["bash", "go.sh"], ["./go.sh"], ["sh", "-e", str(tmp_path / "go.sh"), "x"]):
        found = find_launcher(command, tmp_path)
        assert found is not None
        assert (found.name, found.in_shell, found.value("--nproc-per-node")) == ("torchrun", True, "3")


@pytest.mark.parametrize(
    ("words", "options", "gpus", "processes"),
    [
        (["torchrun", "a.py"], {}, None, 1),
        (["torchrun", "a.py"], {}, 4, 4),
        (["torchrun", "a.py"], {"ranks_per_node": 3}, 4, 3),
        (["torchrun", "--nproc_per_node", "2", "a.py"], {"ranks_per_node": 1}, 4, 2),
        (["torchrun", "--nproc-per-node=gpu", "a.py"], {}, 4, 4),
        (["torchrun", "--nnodes=2", "a.py"], {"nodes": 2}, 4, 4),
        (["torchrun", "--nnodes={nodes}", "a.py"], {"nodes": 2}, 4, 4),
        (["bash", "-c", "torchrun --nnodes=$SLURM_NNODES --nproc-per-node=2 a.py"], {"nodes": 2}, 4, 2),
        (["torchrun", "--standalone", "-m", "train", "--nnodes", "3"], {}, 4, 4),
        (["torchrun", "--max-restarts", "3", "--no-python", "./a", "--nproc-per-node", "2"], {}, 4, 4),
        (["accelerate", "launch", "--num_processes", "8", "a.py"], {"nodes": 2}, 8, 4),
    ],
)
def test_the_number_of_processes_is_given_or_follows_from_the_node(
    words: list[str], options: dict[str, Any], gpus: int | None, processes: int
) -> None:
    launcher = find_launcher(words)
    assert launcher is not None
    given = RunOptions(command=words, **options)
    assert processes_per_node(launcher, given, nodes=given.nodes or 1, gpus=gpus) == processes


@pytest.mark.parametrize(
    ("words", "options", "problem", "line"),
    [
        (
            ["torchrun", "--nproc-per-node", "2", "ddp.py"],
            {"stack": "pytorch", "ranks_per_node": 2},
            "would start torchrun 2 times on each node",
            "hidl run --stack pytorch -- torchrun --nproc-per-node 2 ddp.py",
        ),
        (["torchrun", "--nnodes", "4", "a.py"], {"nodes": 2}, "torchrun --nnodes is 4", "hidl run --nodes 4"),
        (
            ["torchrun", "--nnodes=2", "--node_rank", "0", "a.py"],
            {"nodes": 2},
            "torchrun --node-rank would be the same on all 2 nodes",
            "hidl sets it",
        ),
        (
            ["torchrun", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "a.py"],
            {"nodes": 2},
            "torchrun --rdzv-endpoint localhost:0: on each of 2 nodes, this is the node itself",
            "hidl sets the address",
        ),
        (
            ["torchrun", "--standalone", "a.py"],
            {"nodes": 2},
            "2 separate worlds",
            "hidl run --nodes 2 -- torchrun a.py",
        ),
        (
            ["mpiexec", "-n", "2", "-ppn", "1", "python", "mpi1.py"],
            {"ranks_per_node": 2},
            "mpiexec cannot be the program",
            "hidl run --ranks-per-node 2 -- python mpi1.py",
        ),
        (
            ["mpirun", "--mca", "btl", "self", "-np", "4", "./a", "-n", "3"],
            {},
            "mpirun cannot be the program",
            "hidl run --ranks-per-node 4 -- ./a -n 3",
        ),
        (
            ["horovodrun", "-np", "4", "-H", "a:2,b:2", "python", "a.py"],
            {"nodes": 2, "ranks_per_node": 2},
            "horovodrun cannot be the program",
            "hidl run --nodes 2 --ranks-per-node 2 -- python a.py",
        ),
        (
            ["deepspeed", "--num_gpus", "4", "a.py", "--x", "1"],
            {"nodes": 2},
            "its own host file",
            "hidl run --nodes 2 -- torchrun a.py --x 1",
        ),
        (
            ["accelerate", "launch", "--num_processes", "4", "a.py"],
            {},
            "one process on nodes without GPUs",
            "hidl run --ranks-per-node 4 -- python a.py",
        ),
        (["bash", "-c", "mpirun -np 2 ./a"], {}, "mpirun cannot be the program", "remove mpirun from the command"),
    ],
)
def test_other_launchers_and_nesting_are_errors_with_the_line_to_type(
    words: list[str], options: dict[str, Any], problem: str, line: str
) -> None:
    launcher = find_launcher(words)
    assert launcher is not None
    given = RunOptions(command=words, **options)
    with pytest.raises(UsageError, match=problem) as caught:
        processes_per_node(launcher, given, nodes=given.nodes or 1, gpus=None)
    assert line in (caught.value.hint or "")


def test_each_launcher_of_a_node_learns_how_to_meet_the_others() -> None:
    meeting = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "20000", "HIDL_PROCESSES": "4"}
    environment = dict(meeting)
    assert with_rendezvous(["torchrun", "a.py"], environment) == ["torchrun", "a.py"]
    assert environment == meeting | {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "node1",
        "PET_MASTER_PORT": "20000",
    }
    assert with_rendezvous(["accelerate", "launch", "a.py"], dict(meeting)) == [
        *("accelerate", "launch", "--multi_gpu", "--num_machines", "2", "--machine_rank", "1"),
        *("--num_processes", "8", "--main_process_ip", "node1", "--main_process_port", "20000", "a.py"),
    ]
