"""One-sided communication, on MPICH and on Open MPI: every kind of window with every synchronization."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_workloads.omb.options import SYNCHRONIZATIONS, WINDOWS
from tests.workloads.omb import benchmarks

TRANSFERS = ("put_latency", "get_latency", "put_bw", "get_bw")
ATOMICS = ("acc_latency", "get_acc_latency", "fop_latency", "cas_latency")
FEW = "-m 64:64 -i 2 -x 1 -u 2 -c"


@pytest.fixture(scope="module")
def mpich(stack_prefix: Callable[[str], Path]) -> Path:
    return stack_prefix("mpi")


def test_what_arrives_is_what_was_sent(wheels: Path) -> None:
    lines = [f"put_latency {FEW} -w {window} -s {sync}" for window in WINDOWS for sync in SYNCHRONIZATIONS]
    for number, name in enumerate((*TRANSFERS[1:], *ATOMICS)):  # each of these with every kind, not with every pair
        windows = (WINDOWS[(number + index) % len(WINDOWS)] for index in range(len(SYNCHRONIZATIONS)))
        lines += [f"{name} {FEW} -w {w} -s {s}" for w, s in zip(windows, SYNCHRONIZATIONS, strict=True)]
    lines += [f"put_bibw {FEW} -s {sync}" for sync in ("pscw", "fence")]

    for line, told in zip(lines, benchmarks.run(wheels, 2, *lines), strict=True):
        assert (told.status, told.verdicts) in ((0, ["Pass"]), (0, ["passed"])), (line, told)


def test_sums_are_right_in_every_datatype(wheels: Path) -> None:
    lines = [f"{name} {FEW} -T all" for name in ATOMICS[:3]]
    for told in benchmarks.run(wheels, 2, *lines, f"cas_latency {FEW} -T mpi_char,mpi_int"):
        assert (told.status, set(told.verdicts)) == (0, {"passed"}), told


def test_a_wrong_element_is_found(mpich: Path) -> None:
    lines = [f"{name} {FEW} -s {sync}" for name in (*TRANSFERS, *ATOMICS) for sync in ("flush", "fence")]
    for line, told in zip(lines, benchmarks.run(mpich, 2, *lines, program="runs_corrupted_benchmarks.py"), strict=True):
        assert (told.status, told.verdicts) in ((1, ["Fail"]), (1, ["failed"])), (line, told)


def test_what_omb_refuses_is_refused(mpich: Path) -> None:
    refused = {
        "put_bibw -s flush": "put_bibw supports only pscw and fence",
        "put_latency -s none": "one of lock, flush, flush_local, lock_all, pscw, fence",
        "put_latency -w shared": "one of create, allocate, dynamic",
        "get_bw -T all": "does not support -T",
        "cas_latency -T mpi_float": "does not support floating-point numbers",
        "put_latency --buffer=pickle": "does not support pickle buffers",
        "put_latency --buffer=numba": "allocates windows on the host",
    }
    for told, expected in zip(benchmarks.run(mpich, 2, *refused), refused.values(), strict=True):
        assert (told.status, told.stdout) == (2, ""), told
        assert expected in told.stderr


def test_the_table_reports_window_and_synchronization(mpich: Path) -> None:
    (told,) = benchmarks.run(mpich, 2, "put_latency -m 8:8 -i 1 -x 0 -w dynamic -s pscw")
    assert told.stdout.splitlines()[:5] == [
        "# OSU MPI_Put Latency Test v7.4",
        "# Window creation: MPI_Win_create_dynamic",
        "# Synchronization: MPI_Win_post/start/complete/wait",
        "# Datatype: MPI_CHAR.",
        "# Size          Latency (us)",
    ]
