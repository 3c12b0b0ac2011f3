"""A rank that does not take part in a collective: the others end with an error that names it, and nothing hangs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mpi4c10d.conftest import Completed
from tests.tiers import deep


def outcomes(done: Completed) -> dict[int, tuple[float, str]]:
    """Return by rank the seconds until its error, and the error."""
    found = re.findall(r"^rank (\d): ([\d.]+): (.*)$", done.stdout, re.MULTILINE)
    return {int(rank): (float(seconds), error) for rank, seconds, error in found}


def test_a_rank_that_raises_ends_the_others_at_once(run_ranks: Callable[..., Completed]) -> None:
    done = run_ranks(3, "faults.py", "raises", "120")
    assert done.returncode != 0
    errors = outcomes(done)
    assert set(errors) == {0, 1}, done.stdout + done.stderr
    for seconds, error in errors.values():
        assert "rank 2 ended with ValueError: a fault of the program" in error
        assert seconds < 60  # far below the timeout
    assert "success" not in done.stdout


@pytest.mark.deep
def test_a_rank_that_raises_ends_the_others_on_torch_2_14(
    run_ranks: Callable[..., Completed], on_torch_214: dict[str, str]
) -> None:
    done = run_ranks(3, "faults.py", "raises", "120", **on_torch_214)
    errors = outcomes(done)
    assert set(errors) == {0, 1}, done.stdout + done.stderr
    assert all("rank 2 ended with ValueError: a fault of the program" in error for _, error in errors.values())


@pytest.mark.parametrize("fault", ["is late", "leaves"])
def test_a_missing_rank_is_named_after_the_timeout(run_ranks: Callable[..., Completed], fault: str) -> None:
    done = run_ranks(3, "faults.py", fault, "3")
    errors = outcomes(done)
    assert set(errors) >= {0, 1}, done.stdout + done.stderr
    for rank in (0, 1):
        assert "exceeded the timeout of 3 s; not arrived: rank 2" in errors[rank][1]
    assert "success" not in done.stdout  # the late rank's neither
    assert "rank 0 again: allreduce: group 0 cannot be used any more" in done.stdout


def test_the_late_rank_learns_that_the_others_gave_up(run_ranks: Callable[..., Completed]) -> None:
    done = run_ranks(2, "faults.py", "is late", "3")
    assert "rank 0 gave up allreduce #2 of group 0: exceeded the timeout of 3 s" in outcomes(done)[1][1]


def test_a_rank_that_dies_ends_the_job(run_ranks: Callable[..., Completed]) -> None:
    done = run_ranks(3, "faults.py", "dies", "120")
    assert done.returncode != 0
    assert "success" not in done.stdout


@pytest.fixture
def run_survivors(torch_python: Path, run_program: Callable[..., Completed]) -> Callable[..., Completed]:
    """``run_survivors(3, "program.py", ...)``: run a program whose other ranks go on after one dies, as under srun.

    A shell hides the signal from Hydra.
    """
    mpiexec = str(torch_python.with_name("mpiexec")), "-disable-auto-cleanup", "-n"

    def run(ranks: int, program: str, *arguments: str) -> Completed:
        launch = (*mpiexec, str(ranks), "sh", "-c", 'trap "" USR1; "$@"; exit $?', "sh")
        return run_program(program, *arguments, launch=launch)

    return run


def test_a_rank_that_dies_is_named_where_the_launcher_lets_the_others_go_on(
    run_survivors: Callable[..., Completed],
) -> None:
    check_death_of_rank_2(run_survivors(3, "faults.py", "dies", "120"))


def check_death_of_rank_2(done: Completed) -> None:
    errors = outcomes(done)
    assert set(errors) == {0, 1}, done.stdout + done.stderr
    for seconds, error in errors.values():
        assert "rank 2 has ended (process" in error
        assert seconds < 60  # far below the timeout
    assert "success" not in done.stdout


@pytest.mark.parametrize("call", ["all_reduce", "all_gather", "barrier", "backward"])
@pytest.mark.parametrize("seed", [0, 1, *map(deep, range(2, 20))])
def test_a_rank_that_is_killed_within_a_call_is_named(
    run_survivors: Callable[..., Completed], call: str, seed: int
) -> None:
    done = run_survivors(3, "kills.py", call, str(seed))
    assert done.returncode != 0
    check_death_of_rank_2(done)


def test_a_monitored_barrier_names_the_ranks_that_miss_it(run_ranks: Callable[..., Completed]) -> None:
    done = run_ranks(3, "barriers.py", "mpi")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["Ranks 1, 2 failed to pass monitoredBarrier in 1000 ms"]


def test_the_flight_recorder_shows_which_rank_waits_where(
    run_ranks: Callable[..., Completed], torch_python: Path, tmp_path: Path
) -> None:
    done = run_ranks(3, "waiting.py", TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "rank_"))
    # The first of the two that wait reports the timeout, and the other one that the first gave up.
    assert re.search(r"rank [01]: allreduce #5 of group 0: exceeded the timeout of 3 s", done.stdout), done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rank_0", "rank_1", "rank_2"]
    command = [torch_python.with_name("torchfrtrace"), tmp_path, "--prefix", "rank_"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.findall(
        r"collective: gloo:(\w+)\s+missing ranks: (\S+)\s.*?waiting\.py:(\d+)",
        printed.stdout + printed.stderr,
        re.DOTALL,
    )
    assert sorted(found) == [("all_reduce", "{0}", "19"), ("all_reduce", "{2}", "21")]
