"""Training programs of every kind of parallelism: on mpi they compute what they compute on gloo."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Hidl
from tests.mpi4c10d.conftest import PROGRAMS, Completed
from tests.tiers import deep

#: A few seconds each; the others compile, or repeat what these cover.
FAST = (
    "ddp",
    "ddp_find_unused",
    "ddp_powersgd",
    "fsdp2",
    "tensor_parallel",
    "pipeline",
    "functional",
    "objects_and_groups",
)


@pytest.fixture
def differences(
    run_ranks: Callable[..., Completed], run_program: Callable[..., Completed], tmp_path: Path
) -> Callable[..., dict[str, str]]:
    """``differences(2, *names)``: how the results of these programs differ between mpi and gloo on so many ranks.

    ``everywhere``: options for the ranks on both. Further options are for those on mpi.
    """

    def compare(ranks: int, *names: str, everywhere: dict[str, str] | None = None, **options: Any) -> dict[str, str]:
        files = []
        both = everywhere or {}
        for backend, its in (("mpi", both | options), ("gloo", both)):
            files.append(str(tmp_path / backend))
            done = run_ranks(ranks, "training.py", backend, files[-1], *names, timeout=600, **its)
            assert done.returncode == 0, done.stdout + done.stderr
        compared = run_program("compare.py", *files)
        found: dict[str, str] = json.loads(compared.stdout)
        return found

    return compare


def test_two_ranks_compute_the_bits_that_gloo_computes(differences: Callable[..., dict[str, str]]) -> None:
    assert differences(2, *FAST) == dict.fromkeys(FAST, "equal")


@pytest.mark.deep
def test_every_program_on_two_ranks_computes_the_bits_that_gloo_computes(
    differences: Callable[..., dict[str, str]],
) -> None:
    found = differences(2)
    assert len(found) == 21
    assert set(found.values()) == {"equal"}, found


@pytest.mark.parametrize("ranks", [deep(3), deep(4)])
def test_more_ranks_compute_what_gloo_computes_up_to_rounding(
    differences: Callable[..., dict[str, str]], ranks: int
) -> None:
    found = differences(ranks)
    assert len(found) == 21
    assert set(found.values()) <= {"equal", "close"}, found


@pytest.mark.deep
def test_every_program_on_open_mpi_computes_the_bits_that_gloo_computes(
    differences: Callable[..., dict[str, str]], on_open_mpi: dict[str, str]
) -> None:
    found = differences(2, **on_open_mpi)
    assert len(found) == 21
    assert set(found.values()) == {"equal"}, found


@pytest.mark.deep
@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
def test_every_program_on_two_nodes_of_slurm_computes_the_bits_that_gloo_computes(
    on_cluster: Callable[..., Hidl],
    run_ranks: Callable[..., Completed],
    run_program: Callable[..., Completed],
    tmp_path: Path,
    launcher: str,
) -> None:
    mpi, gloo = str(tmp_path / "mpi"), str(tmp_path / "gloo")
    where = ("--site", "test-cluster", "--launcher", launcher, "--nodes", "2", "--ranks-per-node", "1")
    program = (
        "env",
        f"TMPDIR={tmp_path}",
        "python",
        str(PROGRAMS / "training.py"),
        "mpi",
        mpi,
    )  # nodes have their own /tmp
    ran = on_cluster("pytorch")("run", *where, "--stack", "pytorch", "--", *program)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    done = run_ranks(2, "training.py", "gloo", gloo, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(run_program("compare.py", mpi, gloo).stdout)
    assert len(found) == 21
    assert set(found.values()) == {"equal"}, found


@pytest.mark.deep
def test_programs_on_torch_2_14_compute_the_bits_that_gloo_computes(
    differences: Callable[..., dict[str, str]], on_torch_214: dict[str, str]
) -> None:
    assert differences(2, *FAST, everywhere=on_torch_214) == dict.fromkeys(FAST, "equal")
