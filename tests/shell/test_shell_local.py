"""``hidl shell`` on this machine, at a real terminal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.shell.ends import ENDS, KEPT, Open, children, open_shell
from tests.shell.terminal import Terminal, processes_with
from tests.waiting import until


def at_terminal(hidl: Hidl, cwd: Path, *words: str) -> Terminal:
    return Terminal(hidl.command("shell", "mpi", *words), hidl.environment, cwd)


@pytest.mark.parametrize("way", ENDS)
def test_nothing_is_left(way: str, hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = hidl_with("mpi")
    shell = open_shell(hidl, tmp_path, "--ranks-per-node", "2", launched=2)
    status = ENDS[way](shell)
    assert shell.terminal.wait() == status
    shell.nothing_is_left()
    if way not in KEPT:
        assert list(hidl.runs.iterdir()) == []


@pytest.mark.deep
def test_at_the_time_limit_nothing_is_left(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    shell = open_shell(hidl_with("mpi"), tmp_path, "--time", "0:10", launched=1)
    assert shell.terminal.wait() == 8
    assert "time limit" in shell.terminal.shown
    shell.nothing_is_left()


def test_a_killed_supervisor_leaves_nothing(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    shell = open_shell(hidl_with("mpi"), tmp_path, launched=1)
    (supervisor,) = children(shell.terminal.pid)
    os.kill(supervisor, signal.SIGKILL)
    assert shell.terminal.wait() == 8
    shell.nothing_is_left()


def test_the_shell_has_the_stack_the_directory_and_job_control(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = hidl_with("mpi")
    (tmp_path / "here").mkdir()
    terminal = at_terminal(hidl, tmp_path / "here", "--ranks-per-node", "2")
    terminal.see("ranks PROGRAM starts 2 ranks on 1 node")
    terminal.see("(mpi) ")
    terminal.type('basename $PWD; dirname $(type -P python); echo "threads=$OMP_NUM_THREADS"')
    terminal.see("here")
    terminal.see("installations/local/mpi")
    terminal.see("threads=")
    terminal.type("""ranks python -c "from mpi4py import MPI; print('size', MPI.COMM_WORLD.size)" """)
    terminal.see("size 2")
    terminal.see("size 2")
    terminal.see("(mpi) ")
    terminal.type("sleep 1000")
    until(lambda: processes_with("sleep 1000"), otherwise=lambda: terminal.shown)
    terminal.press(b"\x03")
    terminal.type("echo status=$?")
    terminal.see("status=130")
    terminal.type("sleep 1001")
    until(lambda: processes_with("sleep 1001"), otherwise=lambda: terminal.shown)
    terminal.press(b"\x1a")
    terminal.see("Stopped")
    terminal.type("kill -KILL %1; wait %1; echo gone")
    terminal.see("gone")
    terminal.see("gone")
    terminal.type("exit 0")
    assert terminal.wait() == 0


def test_a_command_has_its_status_and_its_terminal(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    terminal = at_terminal(
        hidl_with("mpi"), tmp_path, "--", "sh", "-c", "test -t 0 && python -c 'import mpi4py' && exit 5"
    )
    assert terminal.wait() == 5


def test_a_command_that_is_suspended_goes_on(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    terminal = at_terminal(hidl_with("mpi"), tmp_path, "--", "sh", "-c", "echo ready; read word; echo got $word")
    terminal.see("ready")
    terminal.press(b"\x1a")
    terminal.type("it")
    terminal.see("got it")
    assert terminal.wait() == 0


def test_ctrl_c_reaches_the_command_alone(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    terminal = at_terminal(
        hidl_with("mpi"), tmp_path, "--", "sh", "-c", "trap 'echo caught; exit 3' INT; echo ready; read x"
    )
    terminal.see("ready")
    terminal.press(b"\x03")
    terminal.see("caught")
    assert terminal.wait() == 3


def test_a_command_needs_no_terminal(hidl_with: Callable[..., Hidl]) -> None:
    completed = hidl_with("mpi")("shell", "mpi", "--", "sh", "-c", "echo $HIDL_STACK; exit 4")
    assert (completed.returncode, completed.stdout) == (4, "mpi\n"), completed.stderr


def test_an_unknown_command_is_reported(hidl_with: Callable[..., Hidl]) -> None:
    completed = hidl_with("mpi")("shell", "mpi", "--", "no-such-program")
    assert completed.returncode == 127
    assert "cannot start no-such-program" in completed.stderr


def test_a_shell_without_a_terminal_is_a_usage_error(hidl_with: Callable[..., Hidl]) -> None:
    completed = hidl_with("mpi")("shell", "mpi")
    assert completed.returncode == 2
    assert "requires a terminal" in completed.stderr
    assert "hidl shell STACK -- COMMAND" in completed.stderr


def test_status_lists_an_open_shell(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = hidl_with("mpi")
    shell: Open = open_shell(hidl, tmp_path, launched=1)
    (listed,) = hidl.json("status")["runs"]
    assert (listed["workload"], listed["state"]) == ("shell", "RUNNING")
    ENDS["exit"](shell)
    shell.terminal.wait()
    assert hidl.json("status")["runs"] == []


def test_a_dry_run_prints_the_script_and_starts_nothing(hidl: Hidl) -> None:
    document = hidl.json("shell", "mpi", "--site", "frontera", "--nodes", "4", "--time", "00:30:00", "--dry-run")
    assert document["schema"] == "hidl.shell-plan/1"
    line = " ".join(document["command"])
    assert line.startswith("salloc --job-name=hidl-shell")
    assert "--time=00:30:00 --nodes=4" in line
    assert line.endswith("--pty bash ./job.sh")
    assert "-m hidl_workloads.shell" in document["script"]
    assert not hidl.runs.exists()


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (("--site", "frontera", "--nodes", "1000000"), 6, "allows"),
        (("--site", "frontera", "--nodes", "3", "--time", "90-00:00:00"), 6, "allows 48:00:00"),
        (("--site", "frontera", "--partition", "no-such"), 2, "has no partition"),
        (("--site", "nurion", "--nodes", "2"), 4, "not supported with scheduler pbs"),
        (("--json",), 2, "--json requires --dry-run"),
    ],
)
def test_refusals_come_before_anything_starts(options: tuple[str, ...], status: int, words: str, hidl: Hidl) -> None:
    more = () if "--json" in options else ("--dry-run",)
    completed = hidl("shell", "mpi", *options, *more)
    assert completed.returncode == status, completed.stderr
    assert words in completed.stderr


def test_the_script_is_sound(hidl: Hidl, tmp_path: Path) -> None:
    hostile = json.dumps({"a b": "$(touch x)"})
    completed = hidl("shell", "mpi", "--dry-run", "--", "python", "-c", hostile)
    assert completed.returncode == 0
    assert f"set -- python -c '{hostile}'" in completed.stdout
