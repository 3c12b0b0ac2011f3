"""A rank that fails ends all ranks, with one message; what all ranks refuse together is said once."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hyparflow.training import guard

from hidl_cli.process import Completed
from tests.tiers import deep
from tests.waiting import patience
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


def test_ranks_start_beside_strays(failing: Callable) -> None:
    done = failing("strays", 0)

    assert done.status == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "rank 0 started, knows [1, 2]",
        "rank 1 started, knows [0]",
        "rank 2 started, knows [0]",
    ]


def connected(listener: socket.socket, words: bytes) -> socket.socket:
    connection = socket.create_connection(listener.getsockname())
    connection.sendall(words)
    return connection


def test_strays_are_closed_and_no_rank_waits_for_them() -> None:
    token, other = b"t" * 16, b"u" * 16
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent, half = connected(listener, b""), connected(listener, token[:9])
        strange = connected(listener, struct.pack("!16sI", other, 1))
        first, again = (connected(listener, struct.pack("!16sI", token, 1)) for _ in range(2))
        second = connected(listener, struct.pack("!16sI", token, 2))

        found = guard.accept(listener, token, [1, 2], 3600)

        assert sorted(found.values()) == [1, 2]
        assert {each.getpeername() for each in found} == {first.getsockname(), second.getsockname()}
        for stray in (silent, half, strange, again):
            stray.settimeout(patience(20))
            with contextlib.suppress(ConnectionResetError):
                assert stray.recv(1) == b""
        assert guard.accept(listener, token, [1], 0.01) == {}
    for each in (*found, silent, half, strange, first, again, second):
        each.close()


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


@pytest.mark.parametrize("victim", [-1, deep(0), 2])
def test_an_interrupt_is_one_line(failing: Callable, victim: int) -> None:
    done = failing("interrupt", victim)

    said = [line for line in done.stderr.splitlines() if line.startswith("hyparflow:")]
    assert done.status != 0
    assert "Traceback" not in done.stderr
    assert len(said) == 1
    assert "interrupted" in said[0]
