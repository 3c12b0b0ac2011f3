"""Names, ranks and addresses of the backend, and starts that it rejects."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mpi4c10d.conftest import PROGRAMS, Completed


def test_importing_torch_registers_the_backend_and_leaves_mpi_alone(run_program: Callable[..., Completed]) -> None:
    done = run_program("registration.py")
    assert json.loads(done.stdout) == {
        "imported MPI": False,
        "available": True,
        "backends": ["mpi", "mpi4c10d"],
        "world": [None] * 4,
    }


@pytest.mark.parametrize("name", ["mpi", "mpi4c10d"])
def test_a_program_of_one_line_finds_its_ranks(run_ranks: Callable[..., Completed], name: str) -> None:
    check_ranks(run_ranks(2, "registration.py", name), name)


def test_open_mpi_s_ranks_are_found(run_ranks: Callable[..., Completed], on_open_mpi: dict[str, str]) -> None:
    check_ranks(run_ranks(2, "registration.py", "mpi", **on_open_mpi), "mpi")


def check_ranks(done: Completed, name: str) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    found = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda each: each["world"])
    for rank, each in enumerate(found):
        assert each["world"] == [str(rank), "2", str(rank), "2"]
        assert each["chosen"] == [name, True, rank, 2]
        assert each["beside"] == "gloo"
        assert each["gathered"] == [0, 1]


def test_a_port_without_an_address_is_replaced(run_ranks: Callable[..., Completed]) -> None:
    """accelerate sets 29500 before it starts torch.distributed; another job may have taken it."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        done = run_ranks(2, "registration.py", "mpi", MASTER_PORT=str(listener.getsockname()[1]))
    assert done.returncode == 0, done.stdout + done.stderr


def test_torchrun_is_rejected_with_the_line_to_type(torch_python: Path, run_program: Callable[..., Completed]) -> None:
    torchrun = str(torch_python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    done = run_program("barriers.py", "mpi", launch=(*torchrun, "--no-python"))
    assert done.returncode != 0
    assert "torchrun starts processes that are no MPI ranks" in done.stderr
    assert f"hint: start the program with: mpiexec -n 2 python {PROGRAMS / 'barriers.py'} mpi" in done.stderr


def test_processes_that_mpi_did_not_start_are_rejected(run_program: Callable[..., Completed]) -> None:
    """Each is a world of one to MPI, and would compute alone."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    both = "sh", "-c", 'RANK=0 "$@" & RANK=1 "$@"; wait', "sh"
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = run_program("barriers.py", "mpi", launch=both, **address)
    assert done.stderr.count("torch.distributed expects 2 ranks (WORLD_SIZE), MPI has started 1") == 2, done.stderr
    assert f"hint: start the program with: mpiexec -n 2 python {PROGRAMS / 'barriers.py'} mpi" in done.stderr
