"""A file system that is full when a run ends: the state stays right, and each command names the cause."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.tiers import deep
from tests.waiting import patience

pytestmark = pytest.mark.real

#: Fills the file system of the runs, then does what its argument says.
FILL = """
import os, sys, time
with open(os.environ["DISK"] + "/fill", "wb", buffering=0) as file:
    for size in (65536, 4096, 1):
        try:
            while True: file.write(bytes(size))
        except OSError: pass
exec(sys.argv[1])
"""
#: Runs each line of a file as a command, on a small file system, and keeps what each printed elsewhere.
DRIVER = """
mount -t tmpfs -o size=1m hidl "$DISK" || exit 99
number=0
while IFS= read -r line; do
    number=$((number + 1))
    bash -c "$line" > "$OUT/$number.out" 2> "$OUT/$number.err" < /dev/null
    echo $? > "$OUT/$number.rc"
done < "$1"
cp -r "$DISK/hidl/runs" "$OUT/runs"
"""
UNSHARE = ("unshare", "-m") if os.getuid() == 0 else ("unshare", "-rm")
HIDL = f"{sys.executable} -m hidl_cli"
#: After a run on the full disk, and after room was made: nothing is half-written, nothing ends with a traceback.
COMMANDS = ("status", "status last", "report", "results list", "capsule last", "prune --yes", "resume last")


@pytest.fixture(scope="session")
def can_mount() -> None:
    done = subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "x", "/mnt"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no file system can be mounted in a namespace here")


@pytest.fixture
def on_small_disk(
    hidl_with: Callable[..., Hidl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_mount: None
) -> Callable[..., list[tuple[int, str]]]:
    """``on_small_disk(command...)``: the exit code and output of each, on a disk of 1 MiB; the runs are in ``out``."""
    hidl = hidl_with("mpi")
    disk, out, place = tmp_path / "disk", tmp_path / "out", tmp_path / "place"
    for each in (disk, out, place):
        each.mkdir()
    monkeypatch.chdir(place)
    (place / "fill.py").write_text(FILL)

    def drive(*commands: str) -> list[tuple[int, str]]:
        (out / "commands").write_text("".join(f"{each}\n" for each in commands))
        environment = hidl.environment | {"DISK": str(disk), "OUT": str(out), "XDG_STATE_HOME": str(disk)}
        line = [*UNSHARE, "bash", "-c", DRIVER, "driver", str(out / "commands")]
        subprocess.run(line, env=environment, check=True, timeout=patience(240))
        found = []
        for number, command in enumerate(commands, start=1):
            text = "".join((out / f"{number}.{kind}").read_text() for kind in ("out", "err"))
            assert "Traceback" not in text, f"{command}\n{text}"
            found.append((int((out / f"{number}.rc").read_text()), text))
        return found

    return drive


def run(action: str, *options: str) -> str:
    return f"{HIDL} run --no-check --no-mpi {' '.join(options)} -- {sys.executable} fill.py '{action}'"


def only_status(out: Path) -> dict[str, object]:
    (directory,) = (each for each in (out / "runs").iterdir() if (each / "plan.json").is_file())
    status: dict[str, object] = json.loads((directory / "status.json").read_text())
    assert not list(directory.glob(".*")), "left over"
    for file in directory.glob("*.json"):
        json.loads(file.read_text())
    return status


@pytest.mark.parametrize(
    ("action", "code", "state"),
    [("sys.exit(0)", 9, ("COMPLETED", 0)), deep("sys.exit(3)", 8, ("FAILED", 3))],
)
def test_the_end_of_a_program_is_known(
    on_small_disk: Callable[..., list[tuple[int, str]]], tmp_path: Path, action: str, code: int, state: tuple[str, int]
) -> None:
    """A program that ended with 0 was once LOST without a reason, after a traceback."""
    commands = [f"{HIDL} {each}" for each in COMMANDS]
    told = on_small_disk(run(action), *commands, run("pass"), 'rm "$DISK/fill"', f"{HIDL} resume last")
    assert told[0][0] == code, told[0][1]
    assert "No space left on device" in told[0][1]
    assert f" {state[0]} " in told[1][1]
    assert f" {state[0]} " in told[2][1]
    again = told[len(COMMANDS) + 1]
    assert again[0] in (1, 4), again
    assert "No space left on device" in again[1]
    assert told[-1][0] == code, told[-1][1]
    status = only_status(tmp_path / "out")
    assert (status["state"], status["exit_status"], status["not_written"]) == (*state, "No space left on device")


@pytest.mark.parametrize(("options", "state"), [(("--time", "00:00:03"), "TIMEOUT"), deep(("--no-wait",), "CANCELLED")])
def test_a_run_that_is_ended_early_says_why(
    on_small_disk: Callable[..., list[tuple[int, str]]], tmp_path: Path, options: tuple[str, ...], state: str
) -> None:
    full = 'until [[ $(df --output=avail "$DISK" | tail -n 1) == *0 ]]; do sleep 0.1; done; sleep 0.5'
    later = [full, f"{HIDL} cancel last"] if state == "CANCELLED" else []
    told = on_small_disk(run("time.sleep(60)", *options), *later, f"{HIDL} status last")
    assert f" {state} " in told[-1][1]
    assert only_status(tmp_path / "out")["state"] == state


@pytest.mark.parametrize("kibibytes", [0, 1, 8])
def test_a_limit_of_the_size_of_files_is_not_taken_for_a_full_disk(
    hidl_with: Callable[..., Hidl], tmp_path: Path, kibibytes: int
) -> None:
    script = f'ulimit -f {kibibytes}; cd "$1"; {HIDL} run --no-check --no-mpi -- true 2>&1 | cat'
    # Python leaves a truncated file of bytecode behind.
    environment = hidl_with("mpi").environment | {"PYTHONDONTWRITEBYTECODE": "1"}
    command = ["bash", "-c", script, "bash", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=patience(120))
    assert "next: raise the file size limit: ulimit -f unlimited" in done.stdout
    assert "free some space" not in done.stdout
