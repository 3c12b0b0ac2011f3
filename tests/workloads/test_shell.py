"""``hidl_workloads.shell``: what runs at the terminal, on the first node."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hidl_workloads import shell, tunnel
from hidl_workloads.shell import Beat
from tests.waiting import patience


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "status.json").write_text(json.dumps({"state": "RUNNING", "exit_status": None, "ended": None}))
    (tmp_path / "beat").write_text("1\n")
    return tmp_path


def attend(directory: Path, *words: str, first: str = "") -> tuple[int, dict[str, object]]:
    program = f"import sys; from hidl_workloads import shell; {first}sys.exit(shell.main(sys.argv[1:]))"
    completed = subprocess.run(
        [sys.executable, "-c", program, "--directory", str(directory), *words],
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=patience(60),
    )
    return completed.returncode, json.loads((directory / "status.json").read_text())


def test_the_status_is_the_commands(directory: Path) -> None:
    status, written = attend(directory, "--", "sh", "-c", "exit 5")
    assert (status, written["state"], written["exit_status"]) == (5, "COMPLETED", 5)


def test_a_signal_counts_128_more(directory: Path) -> None:
    assert attend(directory, "--", "sh", "-c", "kill -KILL $$")[0] == 128 + 9


def test_the_time_limit_ends_it(directory: Path) -> None:
    status, written = attend(directory, "--limit", "0.2", "--", "sleep", "1000")
    assert (status, written["state"], written["reason"]) == (143, "TIMEOUT", "time limit reached")


def test_it_ends_when_hidl_gives_no_sign_of_life(directory: Path) -> None:
    status, written = attend(directory, "--beat", "--", "sleep", "1000", first="shell._SILENCE_SECONDS = 0.2; ")
    assert (status, written["state"]) == (143, "INTERRUPTED")
    assert "no sign of life from hidl" in str(written["reason"])


def test_a_sign_of_life_is_any_change(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "_SILENCE_SECONDS", 0.0)
    beat = Beat(directory / "beat")
    assert beat.is_silent()
    (directory / "beat").write_text("2\n")
    assert not beat.is_silent()
    (directory / "beat").unlink()
    assert not beat.is_silent()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python -m http.server 8123", "-L 8123:node1:8123 me@login1"),
        ("python -m http.server 8123 --bind localhost", "-L 8123:localhost:8123 -J me@login1 me@node1"),
        ("jupyter lab --port=9000", "-L 9000:localhost:9000 -J me@login1 me@node1"),
        ("jupyter lab --port 9000 --ip=0.0.0.0", "-L 9000:node1:9000 me@login1"),
        ("tensorboard --logdir x --bind_all", "-L 6006:node1:6006 me@login1"),
        ("python serve.py --port 7000", "-L 7000:localhost:7000 -J me@login1 me@node1"),
    ],
)
def test_the_line_names_the_node_and_the_login_host(command: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node1")
    line = tunnel.line(command.split(), user="me", login="login1")
    assert f"ssh -N {words} and open" in line


def test_this_machine_is_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    assert "ssh -N -L 80:localhost:80 me@laptop and" in tunnel.line(["x", "--port", "80"], user="me", login="")


def test_jupyter_gets_a_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import socket

    monkeypatch.setenv("JUPYTER_PORT", "")
    with socket.socket() as taken:
        try:
            taken.bind(("", 8888))
            taken.listen()
        except OSError:
            pass
        line = tunnel.line(["jupyter", "lab"], user="me", login="login1")
    port = os.environ["JUPYTER_PORT"]
    assert int(port) > 8888
    assert f"localhost:{port} -J" in line


def test_other_commands_get_no_line() -> None:
    assert tunnel.line(["python", "-p", "train.py"], user="me", login="login1") == ""
