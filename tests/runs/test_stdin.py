"""Standard input of a user's own program: rank 0 reads what ``hidl run`` was given, and nothing is lost or invented."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import hidl_cli.api as hidl_api
from hidl_cli.errors import UsageError
from tests.conftest import Hidl
from tests.waiting import patience, until

pytestmark = pytest.mark.real

#: Prints the rank with the number and the hash of the bytes that it reads.
READ = """
import hashlib, os, sys
data = sys.stdin.buffer.read()
print(os.environ["RANK"], len(data), hashlib.sha256(data).hexdigest()[:8])
"""


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl]) -> Hidl:
    """hidl with the mpi stack."""
    return hidl_with("mpi")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of a user's, with a space in its name, in which hidl is started."""
    place = tmp_path / "my project"
    place.mkdir()
    monkeypatch.chdir(place)
    (place / "read.py").write_text(READ)
    (place / "in put.txt").write_text("1\n2\n4\n")
    return place


def in_bash(hidl: Hidl, line: str, **options: object) -> subprocess.CompletedProcess[str]:
    """A line of bash in which ``hidl`` is the program."""
    function = f'hidl() {{ {shlex.quote(sys.executable)} -m hidl_cli "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", function + line],
        env=hidl.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(120),
        **options,  # type: ignore[call-overload]
    )


def printed(hidl: Hidl) -> list[str]:
    """Return what the program of the newest run printed, a line for each rank."""
    newest = max(hidl.runs.iterdir(), key=lambda run: run.stat().st_mtime_ns)
    return sorted(line for line in (newest / "stdout.log").read_text().splitlines() if not line.startswith("#"))


def line_of(rank: int, data: bytes) -> str:
    return f"{rank} {len(data)} {hashlib.sha256(data).hexdigest()[:8]}"


RUN = "hidl run --no-mpi --ranks-per-node 2 -- python read.py"
#: Prints what ``hidl run`` would give its program: the path, or a hash of the bytes that it copies.
FIND = """
import sys; from pathlib import Path; from hidl_cli.plan.input_files import PIPED, copy_stdin, find_stdin
found = find_stdin()
if found == PIPED:
    copy_stdin(Path("run", PIPED))
    found = Path("run", PIPED).read_bytes()
Path("found").write_text(repr(found))
"""
GIVEN = {
    "a file": ("FIND < 'in put.txt'", "in put.txt"),
    "a link": ("ln -s 'in put.txt' link && FIND < link", "in put.txt"),
    "a pipe": ("cat 'in put.txt' | FIND", b"1\n2\n4\n"),
    "a process": ("FIND < <(printf 'a\\0b')", b"a\0b"),
    "a here-document": ("FIND << END\none\n\ntwo\nEND", b"one\n\ntwo\n"),
    "a here-string": ("FIND <<< text", b"text\n"),
    "an empty file": (": > empty && FIND < empty", "empty"),
    "an empty pipe": ("true | FIND", b""),
    "a named pipe": ("mkfifo fifo && { echo x > fifo & } && FIND < fifo", b"x\n"),
    "a file without a path": ("exec 5< 'in put.txt' && rm 'in put.txt' && FIND <&5", b"1\n2\n4\n"),
    "a file replaced": ("exec 5< 'in put.txt' && mv 'in put.txt' x && echo n > 'in put.txt' && FIND <&5", "x"),
    "a file read in part": ("{ read -r line; FIND; } < 'in put.txt'", b"2\n4\n"),
    "a file in memory": ("f=$(mktemp -p /dev/shm); echo x > $f; FIND < $f; rm $f", b"x\n"),
    "a file of the kernel": ("FIND < /proc/sys/kernel/ostype", b"Linux\n"),
    "a name of odd characters": ("printf 'o\\n' > $'%41 :\\n\\'\"' && FIND < $'%41 :\\n\\'\"'", "%41 :\n'\""),
    "a name that is not UTF-8": ("printf 'o\\n' > $'\\xff' && FIND < $'\\xff'", b"o\n"),
    "/dev/null": ("FIND < /dev/null", None),
    "closed": ("FIND <&-", None),
    "opened for writing": ("FIND 0> out", None),
    "opened for both": ("FIND <> 'in put.txt'", "in put.txt"),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_what_a_program_is_given(here: Path, kind: str) -> None:
    line, expected = GIVEN[kind]
    find = f"{shlex.quote(sys.executable)} -c {shlex.quote(FIND)}"
    subprocess.run(["bash", "-c", line.replace("FIND", find)], check=True, stdin=subprocess.DEVNULL)
    found = (here / "found").read_text()
    assert found == repr(str(here / expected) if isinstance(expected, str) else expected)


RAN = {
    "a file": (f"{RUN} < 'in put.txt'", b"1\n2\n4\n"),
    "a pipe": (f"printf 'a\\0b' | {RUN}", b"a\0b"),
    "a name of odd characters": (f"printf 'o\\n' > $'%41 :\\n\\'\"' && {RUN} < $'%41 :\\n\\'\"'", b"o\n"),
    "none": (RUN, b""),
    "closed": (f"{RUN} <&-", b""),
}


@pytest.mark.parametrize("kind", RAN)
def test_rank_0_reads_what_hidl_was_given_and_others_nothing(hidl: Hidl, here: Path, kind: str) -> None:
    line, data = RAN[kind]
    done = in_bash(hidl, line, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert printed(hidl) == [line_of(0, data), line_of(1, b"")]


def test_the_sum_of_the_lines_is_right(hidl: Hidl, here: Path) -> None:
    done = in_bash(hidl, "hidl run -- awk '{ sum += $1 } END { print \"sum\", sum + 0 }' < 'in put.txt'")
    assert done.returncode == 0, done.stderr
    assert printed(hidl) == ["sum 7"]


def test_a_socket_is_no_input(hidl: Hidl, here: Path) -> None:
    """Services have one, that may never end."""
    mine, theirs = __import__("socket").socketpair()
    with mine, theirs:
        assert in_bash(hidl, RUN, stdin=theirs).returncode == 0
    assert printed(hidl) == [line_of(0, b""), line_of(1, b"")]


@pytest.mark.parametrize("through", ["< data", "< <(cat data)"])
def test_every_byte_arrives_in_each_repetition(hidl: Hidl, here: Path, through: str) -> None:
    data = random.Random(1).randbytes(5 << 20) + b"\0" * 4097
    (here / "data").write_bytes(data)
    options = "--no-mpi --ranks-per-node 2 --repeat 2 --metric 'bytes=^0 ([0-9]+)'"
    done = in_bash(hidl, f"hidl run {options} -- python read.py {through}")
    assert done.returncode == 0, done.stderr
    assert printed(hidl) == [line_of(0, data)] * 2 + [line_of(1, b"")] * 2


def test_the_check_of_the_world_reads_none_of_it(hidl: Hidl, here: Path) -> None:
    done = in_bash(hidl, "hidl run --ranks-per-node 2 -- python read.py < 'in put.txt'")
    assert done.returncode == 0, done.stderr
    assert printed(hidl) == [line_of(0, b"1\n2\n4\n"), line_of(1, b"")]


def test_a_loop_over_the_lines_of_a_file_goes_on(hidl: Hidl, here: Path) -> None:
    """ssh, srun and mpiexec read the rest of the file, and the loop ends after its first line."""
    loop = "while read -r word; do hidl run --no-mpi -- bash -c \"echo $word\"; done < 'in put.txt'"
    assert in_bash(hidl, loop).returncode == 0
    assert sorted((run / "stdout.log").read_text() for run in hidl.runs.iterdir()) == ["1\n", "2\n", "4\n"]


def test_a_device_without_an_end_is_refused(hidl: Hidl, here: Path) -> None:
    done = in_bash(hidl, f"{RUN} < /dev/zero")
    assert done.returncode == 2
    assert "standard input is a device" in done.stderr
    assert not hidl.runs.exists()


def test_a_dry_run_and_an_estimate_show_it_and_read_nothing(hidl: Hidl, here: Path) -> None:
    done = in_bash(hidl, f"{{ {RUN.replace('run', 'run --dry-run')}; cat; }} < <(echo kept)")
    assert "--stdin stdin" in done.stdout
    assert done.stdout.endswith("kept\n")
    done = in_bash(hidl, f"{RUN.replace('run', 'run --dry-run --json')} < 'in put.txt'")
    assert json.loads(done.stdout)["plan"]["stdin"] == str(here / "in put.txt")
    assert not hidl.runs.exists()


def test_a_workload_reads_none(hidl: Hidl, here: Path) -> None:
    done = in_bash(hidl, "hidl run --dry-run --json osu-latency < 'in put.txt'")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["stdin"] is None


def test_an_input_that_is_gone_when_the_job_starts_is_named(hidl: Hidl, here: Path, tmp_path: Path) -> None:
    assert in_bash(hidl, f"{RUN} < 'in put.txt'").returncode == 0
    (run,) = hidl.runs.iterdir()
    shutil.copytree(run, tmp_path / "again")
    (here / "in put.txt").unlink()
    again = subprocess.run(
        ["bash", "job.sh"], cwd=tmp_path / "again", env=hidl.environment, capture_output=True, text=True, check=False
    )
    assert f"standard input {here / 'in put.txt'}: No such file or directory on" in again.stderr
    assert json.loads((tmp_path / "again/status.json").read_text())["state"] == "FAILED"


def test_a_copied_run_directory_brings_what_came_through_a_pipe(hidl: Hidl, here: Path, tmp_path: Path) -> None:
    assert in_bash(hidl, f"{RUN} < <(echo piped)").returncode == 0
    (run,) = hidl.runs.iterdir()
    shutil.move(run, tmp_path / "again")
    again = subprocess.run(
        ["bash", "job.sh"], cwd=tmp_path / "again", env=hidl.environment, capture_output=True, text=True, check=False
    )
    assert sorted(again.stdout.splitlines())[0] == line_of(0, b"piped\n"), again.stderr


def test_an_open_pipe_is_told_and_an_interrupt_leaves_nothing(hidl: Hidl, here: Path) -> None:
    with hidl.start("run", "--", "cat", stdin=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        assert waiting.stderr is not None
        errors = waiting.stderr.fileno()
        os.set_blocking(errors, False)
        said = ""

        def told() -> bool:
            nonlocal said
            with suppress(BlockingIOError):
                said += os.read(errors, 1 << 16).decode()
            return "reading the program's standard input" in said

        until(told)
        assert [*hidl.runs.glob("*/plan.json")] == []
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(patience(60)) == 130
    assert [*hidl.runs.iterdir()] == []


def test_a_pipe_that_stays_silent_ends_the_command(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from hidl_cli.plan import input_files\n"
        "input_files.QUIET, input_files.LONGEST_SILENCE = 0.1, 0.3\n"
        "input_files.copy_stdin(Path(sys.argv[1]), print)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run" / "stdin")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=-1, stderr=-1, text=True) as silent:
        assert silent.wait(patience(60)) == 1
        assert silent.stdout is not None
        assert silent.stderr is not None
        assert silent.stdout.read().count("reading the program's standard input") == 1
        assert "sent nothing for 0 s" in silent.stderr.read()
    assert not (tmp_path / "run").exists()


def test_python_gives_a_file_and_never_its_own_input(hidl: Hidl, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in hidl.environment.items():
        monkeypatch.setenv(name, value)
    command = ["python", "read.py"]
    assert hidl_api.plan(command=command).document["stdin"] is None
    run = hidl_api.run(command=command, uses_mpi=False, stdin="in put.txt").wait()
    assert run.logs().splitlines() == [line_of(0, b"1\n2\n4\n")]
    with pytest.raises(UsageError, match="no such: No such file or directory"):
        hidl_api.run(command=command, stdin="no such")
    with pytest.raises(UsageError, match="reads no standard input"):
        hidl_api.plan("osu-latency", stdin="in put.txt")


@pytest.mark.parametrize("through", ["< 'in put.txt'", "< <(cat 'in put.txt')"])
def test_a_replay_reads_the_same_input_or_names_it(hidl: Hidl, here: Path, through: str) -> None:
    assert in_bash(hidl, f"{RUN.replace('run', 'run --repeat 3')} {through}").returncode == 0
    (run,) = hidl.runs.iterdir()
    data = b"1\n2\n4\n"
    stdin = here / "in put.txt" if "<(" not in through else run / "stdin"
    recorded = json.loads((run / "inputs.json").read_text())["files"]
    assert recorded[str(stdin)]["sha256"] == hashlib.sha256(data).hexdigest()
    assert hidl("capsule", run.name, "-o", "it.capsule").returncode == 0
    again = hidl("replay", "it.capsule", "--yes", "--tolerance", "2")
    assert again.returncode in (0, 10, 11), again.stderr
    assert printed(hidl) == [line_of(0, data)] * 3 + [line_of(1, b"")] * 3
    stdin.unlink()
    again = hidl("replay", "it.capsule", "--yes")
    assert again.returncode == 4
    assert f"{stdin}: not found" in again.stderr.replace("\n", "")
    again = hidl("replay", "it.capsule", "--yes", "--changed-inputs")
    assert again.returncode == 2
    assert "No such file or directory" in again.stderr
