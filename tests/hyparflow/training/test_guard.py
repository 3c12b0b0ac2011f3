"""A rank that fails ends all ranks, with one message; what all ranks refuse together is said once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.process import Completed
from tests.workloads import ranks

PROGRAM = Path(__file__).parent / "programs" / "failing.py"
LIBRARY = ranks.REPOSITORY / "libs" / "hyparflow"


@pytest.fixture
def failing(stack_prefix: Callable[[str], Path]) -> Callable[[str, int], Completed]:
    """``failing(how, victim)``: 3 ranks, of which one fails while the others wait for a message for ever."""

    def run(how: str, victim: int) -> Completed:
        words = (PROGRAM, how, str(victim))
        return ranks.run(stack_prefix("mpi"), 3, *words, timeout=300, PYTHONPATH=str(LIBRARY))

    return run


@pytest.mark.parametrize("victim", [0, 2])
def test_an_error_of_one_rank_is_said_by_that_rank_and_ends_all(failing: Callable, victim: int) -> None:
    done = failing("raise", victim)

    said = re.findall(r"^hyparflow: rank (\d) of 3 .* failed with ValueError: my own fault", done.stderr, re.MULTILINE)
    assert said == [str(victim)]
    assert done.status in (1, 1 | 9)  # Hydra's, which kills ranks that do not end as fast as the first


def test_a_rank_that_is_killed_ends_all(failing: Callable) -> None:
    done = failing("kill", 1)

    assert done.status != 0
    assert re.search(r"^hyparflow: rank 1 of 3 .* died|EXIT CODE: 9", done.stderr + done.stdout, re.MULTILINE)


def test_a_rank_that_leaves_ends_all(failing: Callable) -> None:
    assert failing("exit", 1).status != 0


def test_what_ranks_refuse_is_said_once_by_the_lowest_of_them_and_ends_each_with_the_same_status(
    failing: Callable,
) -> None:
    done = failing("refuse", 1)

    line = PROGRAM.read_text().splitlines().index('        raise DataError(f"rank {comm.rank} refuses")') + 1
    assert done.status == 1
    assert done.stderr.strip() == f"hyparflow: DataError: rank 1 refuses ({PROGRAM}, line {line})"


@pytest.mark.parametrize(
    ("how", "last", "line"),
    [
        ("together", "ValueError: our common fault", 'raise ValueError("our common fault")'),
        ("typo", "TypeError: refuse() got an unexpected keyword argument 'whom'", "refuse(whom=1)"),
    ],
)
def test_what_all_ranks_raise_is_an_ordinary_traceback_once(failing: Callable, how: str, last: str, line: str) -> None:
    done = failing(how, 0)

    assert done.status == 1
    assert done.stderr.count(line) == done.stderr.count("Traceback (most recent call last)") == 1
    assert done.stderr.strip().endswith(last)
    assert "Abort" not in done.stderr + done.stdout


@pytest.mark.parametrize("victim", [-1, 0, 2])
def test_an_interrupt_is_one_line(failing: Callable, victim: int) -> None:
    done = failing("interrupt", victim)

    said = [line for line in done.stderr.splitlines() if line.startswith("hyparflow:")]
    assert done.status != 0
    assert "Traceback" not in done.stderr
    assert len(said) == 1
    assert "interrupted" in said[0]
