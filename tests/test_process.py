"""The door out: output, status, time-outs, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hidl_cli import process
from hidl_cli.errors import ProcessFailed
from tests.waiting import patience, until


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def until_gone(pid: int) -> None:
    until(lambda: not alive(pid), within=5)


def test_both_streams_and_the_status_come_back() -> None:
    completed = process.run(["sh", "-c", "echo out; echo err >&2; exit 3"], check=False)
    assert (completed.status, completed.stdout, completed.stderr) == (3, "out\n", "err\n")


def test_a_failure_carries_command_directory_status_output_and_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "x.log"
    with pytest.raises(ProcessFailed) as caught:
        process.run(["sh", "-c", "echo broken; exit 7"], cwd=tmp_path, log=log)
    error = caught.value
    assert (error.command[0], error.cwd, error.status, error.log) == ("sh", tmp_path, 7, log)
    assert "broken" in error.output
    assert log.read_text() == "broken\n"


@pytest.mark.parametrize(
    ("after", "end"),
    [("step " * 796, "step step"), ("step\n" * 2000 + "sent 0fAPr0cess9xK2 to server", "sent *** to server")],
    ids=["cut", "name before"],  # in $PYTEST_CURRENT_TEST
)
def test_the_output_of_a_failure_contains_no_part_of_a_secret(after: str, end: str) -> None:
    """In the first case, the last 4000 bytes begin within the secret; in the second one, its name is before them."""
    with pytest.raises(ProcessFailed) as caught:
        process.run(["sh", "-c", 'printf "%s" "$1"; exit 3', "sh", f"connect --token 0fAPr0cess9xK2\n{after}"])
    assert "0cess9xK2" not in caught.value.output
    assert caught.value.output.endswith(end)


def test_a_program_that_does_not_exist_is_a_failure_with_status_127() -> None:
    with pytest.raises(ProcessFailed) as caught:
        process.run(["/no/such/program"])
    assert caught.value.status == 127


def test_a_time_out_ends_the_whole_group(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with pytest.raises(ProcessFailed, match="signal"):
        process.run(["sh", "-c", f"sleep 60 & echo $! > {file}; wait"], timeout=0.5)
    until_gone(int(file.read_text()))


def test_an_interrupt_ends_the_child(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = f"from hidl_cli import process\nprocess.run(['sh', '-c', 'echo $$ > {file}; exec sleep 60'])\n"
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    wait_for(file)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(patience(20)) != 0
    until_gone(int(file.read_text()))


def test_an_interrupt_while_the_child_is_forked_is_not_lost(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = (
        "import os, signal\nfrom hidl_cli import process\n"
        "os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        f"process.run(['sh', '-c', 'echo $$ > {file}; exec sleep 60'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=patience(30), check=False
    )
    assert "KeyboardInterrupt" in done.stderr
    assert "ignored" not in done.stderr
    if begun := file.read_text() if file.exists() else "":
        until_gone(int(begun))


def test_what_is_done_meanwhile_runs_beside_the_program_and_ends_it_when_it_fails(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = ["sh", "-c", f"echo $$ > {file}; exec sleep 60"]
    with pytest.raises(ZeroDivisionError):
        process.run(command, meanwhile=lambda: (wait_for(file), 1 / 0))
    until_gone(int(file.read_text()))


def test_a_killed_parent_takes_its_child_along(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = f"from hidl_cli import process\nprocess.run(['sh', '-c', 'echo $$ > {file}; exec sleep 60'])\n"
    parent = subprocess.Popen([sys.executable, "-c", script])
    wait_for(file)
    parent.kill()
    parent.wait()
    until_gone(int(file.read_text()))


def test_a_detached_process_outlives_its_parent(tmp_path: Path) -> None:
    script = (
        "import os\nfrom pathlib import Path\nfrom hidl_cli import process\n"
        f"t = Path({str(tmp_path)!r})\n"
        "child = process.start_detached(['sleep', '60'], cwd=t, env=os.environ, stdout=t / 'o', stderr=t / 'e')\n"
        "print(child.pid)\n"
    )
    pid = int(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
    try:
        assert alive(pid)
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGKILL)


def wait_for(file: Path) -> None:
    until(lambda: file.exists() and file.read_text().endswith("\n"), within=10)


def test_a_failure_is_one_though_the_starting_process_ignores_its_children() -> None:
    ignoring = (
        "import signal, os, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    )
    hidl = (
        "import sys; from hidl_cli import __main__, process\n"
        "sys.argv = ['hidl', 'site', 'list']\n"
        "try: __main__.main()\n"
        "except SystemExit: print('status', process.run(['false'], check=False).status)"
    )
    command = [sys.executable, "-c", ignoring, sys.executable, "-c", hidl]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patience(60)).stdout
    assert printed.endswith("status 1\n")
