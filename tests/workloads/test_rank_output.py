"""A rank's output in files of its own, and passed on as it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.waiting import patience


def start(place: Path, whose: str, rank: int, *command: str, **options: object) -> subprocess.Popen[bytes]:
    """Start a program as a launcher starts the rank."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(REPOSITORY),
        "HIDL_METRICS": str(place / "metrics.json"),
        "PMI_RANK": str(rank),
    }
    words = [sys.executable, "-m", "hidl_workloads.rank_output", whose, *command]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def test_both_streams_are_kept_and_passed_on(tmp_path: Path) -> None:
    program = start(tmp_path, "each", 3, "bash", "-c", "printf 'out\\0'; echo err >&2; exit 7")
    out, err = program.communicate(timeout=patience(60))
    assert (out, err, program.returncode) == (b"out\0", b"err\n", 7)
    assert (tmp_path / "ranks" / "3.out").read_bytes() == b"out\0"
    assert (tmp_path / "ranks" / "3.err").read_bytes() == b"err\n"


@pytest.mark.parametrize(("rank", "kept"), [(0, True), (1, False)])
def test_the_output_of_rank_0_alone_is_kept(tmp_path: Path, rank: int, kept: bool) -> None:
    out, _ = start(tmp_path, "0", rank, "echo", "here").communicate(timeout=patience(60))
    assert out == b"here\n"
    assert (tmp_path / "ranks" / f"{rank}.out").exists() == kept


def test_much_output_is_whole(tmp_path: Path) -> None:
    size = 20_000_000
    program = start(tmp_path, "each", 0, "head", "-c", str(size), "/dev/zero")
    out, _ = program.communicate(timeout=patience(120))
    assert len(out) == (tmp_path / "ranks" / "0.out").stat().st_size == size


def test_the_program_is_the_process_that_was_started(tmp_path: Path) -> None:
    program = start(tmp_path, "each", 0, "bash", "-c", "echo $$; ps -o pid= --ppid $$ | wc -l; exec sleep 60")
    assert program.stdout is not None
    assert int(program.stdout.readline()) == program.pid
    assert int(program.stdout.readline()) <= 2  # ps and wc, and not the process that copies
    program.send_signal(signal.SIGTERM)
    assert program.wait(patience(60)) == -signal.SIGTERM


def test_last_words_after_a_signal_are_kept(tmp_path: Path) -> None:
    words = ("bash", "-c", "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    program = start(tmp_path, "each", 0, *words, start_new_session=True)
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"
    os.killpg(program.pid, signal.SIGTERM)
    out, _ = program.communicate(timeout=patience(60))
    assert (out, program.returncode) == (b"bye\n", 3)
    assert (tmp_path / "ranks" / "0.out").read_bytes() == b"ready\nbye\n"


def test_a_program_that_is_missing_is_said(tmp_path: Path) -> None:
    program = start(tmp_path, "each", 0, "no-such-program")
    _, err = program.communicate(timeout=patience(60))
    assert program.returncode == 127
    assert b"no-such-program: No such file" in err


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    program = start(tmp_path / "missing", "each", 0, "true")
    _, err = program.communicate(timeout=patience(60))
    assert program.returncode == 125
    assert b"No such file" in err
