"""Limits on what the jobs of a run use together: ``hidl run --until-done --max-node-hours --max-cost``."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import Hidl
from tests.runs.test_until_done import COUNTS, OWN, attempts, only_run, printed

LIMIT = 300  # seconds of a job
#: What a job writes, as the job script formats it.
STATUS = (
    '{"schema": "hidl.status/1", "job": "7", "state": "FAILED", "exit_status": 9, "started": %s, "ended": %s, '
    '"step": 1, "steps": 1, "hosts": ["node1"]}'
)

Times = tuple[float, float | None]


def test_a_run_ends_before_a_job_that_could_exceed_its_node_hours(hidl_with: Callable[..., Hidl]) -> None:
    """17 s of one node: a second job of at most 10 s starts after a first one of 5 s, but not a third."""
    hidl = hidl_with("mpi")
    limit = ("--time", "0:10", "--max-node-hours", "0.00473")
    completed = hidl("run", *OWN, *limit, "--", "python", str(COUNTS), "9", "1,2,3", "")
    assert completed.returncode == 8
    found = re.search(
        r"the run ends here: the next job could exceed --max-node-hours 0\.00473: ([0-9.]+) node-hours used, and a job "
        r"may use 0\.002778",
        completed.stderr,
    )
    assert found, completed.stderr
    run = only_run(hidl)
    before, status = attempts(run), json.loads((run / "status.json").read_text())
    used = sum(each["ended"] - each["started"] for each in [*before, status])
    assert float(found[1]) * 3600 == pytest.approx(used, abs=2)
    assert used - (status["ended"] - status["started"]) + 10 < 17.03 < used + 10
    begun = [f"begins at {number}" for number in range(len(before) + 1)]
    assert printed(run) == begun

    again = subprocess.run(
        ["bash", "job.sh"], cwd=run, env=hidl.environment, capture_output=True, text=True, check=False
    )
    assert again.returncode == 1
    assert (again.stdout, printed(run)) == ("", begun)
    assert "the next job could exceed --max-node-hours 0.00473: " in again.stderr


def status(times: Times) -> str:
    started, ended = times
    return STATUS % (started + 0.5, "null" if ended is None else ended + 0.5)


def functions_of(script: str, *names: str) -> list[str]:
    """Return functions of a job script."""
    found = re.findall(rf"^(?:{'|'.join(names)})\(\) {{.*?^}}$", script, re.MULTILINE | re.DOTALL)
    assert len(found) == len(names)
    return found


@pytest.fixture
def script(hidl: Hidl) -> str:
    """The script of jobs of four nodes that may use 650 s of them. Slurm grants each job 5 minutes."""
    plan = ("run", "gpt", "--site", "frontera", "--nodes", "4", "--time", "4:30", "--dry-run", "--no-check")
    return hidl(*plan, "--until-done", "--max-node-hours", str(4 * 650 / 3600)).stdout


@pytest.fixture
def in_job(script: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``in_job(command...)``: run commands in a job that begins at 9000.5, with the script's functions for limits."""
    names = ("add_attempt", "ends_before_next_job", "times_of_jobs", "earlier_jobs", "used_seconds", "check_limit")
    functions = functions_of(script, *names)
    variables = "started=9000.5 now=9000.5 idle=0 continues=yes HIDL_CHECKPOINT=here"

    def run(*commands: str) -> subprocess.CompletedProcess[str]:
        text = ["set -uo pipefail", variables, *functions, *commands]
        return subprocess.run(
            ["bash", "-c", "\n".join(text)], capture_output=True, text=True, check=False, cwd=tmp_path
        )

    return run


USED = 'used_seconds "$now"; echo'
ENDS = 'ends_before_next_job 1 "$now" && echo ends'


@pytest.mark.parametrize(
    ("jobs", "used"),
    [
        ([], 0),
        ([(100, 160)], 60),
        ([(100, 160), (200, 300)], 160),
        ([(100, 160), (200, 500)], 360),
        ([(100, None), (150, 160)], 60),  # killed: until the next job began
        ([(100, None)], LIMIT),  # and at most the time limit
        ([(100, None), (150, None), (150.25, 160.25)], 60.25),
        ([(100, 500)], 400),  # a program that was hard to end
        ([(100, 160), (100, 160)], 60),  # a job that was recorded twice
        ([(100, 160), (100, None)], 60),
        ([(100, None), (100, 160)], 60),
        ([(100, 160), (100, 170), (200, 210)], 80),
        ([(5000, 1400)], LIMIT),  # a clock that was set back
        ([(5000, None), (4000, 4060)], LIMIT + 60),
        ([(9500, None)], LIMIT),
    ],
)
def test_jobs_count_with_their_node_hours(
    in_job: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, jobs: list[Times], used: float
) -> None:
    """At most 650 s of the four nodes, of which the next job may use 300."""
    (tmp_path / "attempts.jsonl").write_text("".join(f"{status(each)}\n" for each in jobs))
    done = in_job(USED, ENDS)
    exceeds = used > 350
    assert done.stdout.split() == [f"{used:.3f}", *(["ends"] if exceeds else [])], done.stderr
    assert ("could exceed --max-node-hours 0.722222" in done.stderr) is exceeds


def test_jobs_count_with_the_nodes_that_they_had(hidl: Hidl, tmp_path: Path) -> None:
    """Of 2 to 4 nodes: a job of 80 s on 2 counts like one of 40 s on 4; the nodes of another one are unknown."""
    plan = ("run", "kmeans", "--site", "expanse", "--nodes", "2-4", "--time", "4:30", "--dry-run", "--no-check")
    limit = ("--account", "abc", "--until-done", "--max-node-hours", str(4 * 650 / 3600))
    script = hidl(*plan, *limit).stdout
    functions = functions_of(script, "times_of_jobs", "earlier_jobs", "used_seconds")
    jobs = [((100, 180), 2), ((200, 210), 4), ((300, None), 3), ((400, 430), 0), ((500, None), 2)]
    lines = [status(times).replace('"node1"', ", ".join(['"node1"'] * nodes)) for times, nodes in jobs]
    (tmp_path / "attempts.jsonl").write_text("".join(f"{each}\n" for each in lines))
    (tmp_path / "hosts").write_text("node1\nnode2\n")
    text = ["set -euo pipefail", "started=9000.5 continues=yes", *functions, "used_seconds 9100.5"]
    done = subprocess.run(["bash", "-c", "\n".join(text)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert float(done.stdout) == 40 + 10 + 100 * 3 / 4 + 30 + LIMIT / 2 + 100 / 2


@pytest.mark.parametrize(("now", "used"), [("9100.5", 100), ("9700.5", 700), ("8000.5", LIMIT)])
def test_the_running_job_counts_up_to_now(
    in_job: Callable[..., subprocess.CompletedProcess[str]], now: str, used: int
) -> None:
    assert in_job("continues=", f"now={now}", USED).stdout.split() == [f"{used}.000"]


@pytest.mark.parametrize(
    ("end", "used"),
    [
        ("{", LIMIT),
        ('"job": "7', LIMIT),
        ('"started": ', LIMIT),
        ('"started": 100', LIMIT),  # the job may have begun at 100 or at 1000
        ('"started": 100.5,', 100),  # like a killed job
        ('"ended": 160', 100),
        ('"ended": 160.5,', 60),
        ("]}", 60),
    ],
)
def test_a_line_that_a_full_disk_cut_off_is_a_job(
    in_job: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, end: str, used: int
) -> None:
    """The next job's line does not continue it."""
    line = status((100, 160))
    (tmp_path / "attempts.jsonl").write_text(line[: line.index(end) + len(end)])
    done = in_job(f"add_attempt '{status((200, 210))}'", USED, "times_of_jobs < attempts.jsonl | wc -l")
    assert done.stdout.split() == [f"{used + 10}.000", "2"], done.stderr


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("awk() { return 127; }", "what its jobs have used cannot be determined"),
        ("awk() { :; }", "what its jobs have used cannot be determined"),
        (
            'awk() { if [[ $* == *now=* ]]; then cat > /dev/null; else command awk "$@"; fi; }',
            "what its jobs have used cannot be determined",
        ),
        ("cat() { echo cut; return 1; }", "what its jobs have used cannot be determined"),
        ("rm attempts.jsonl", "what its jobs have used cannot be determined"),
        ("mkdir earlier.1", "what its jobs have used cannot be determined"),
        ('awk() { [[ $* != *option* ]] && command awk "$@"; }', "--max-node-hours cannot be checked"),
        ('awk() { [[ $* == *option* ]] || command awk "$@"; }', "--max-node-hours cannot be checked"),
    ],
)
def test_a_limit_that_cannot_be_checked_ends_the_run(
    in_job: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, fault: str, why: str
) -> None:
    (tmp_path / "attempts.jsonl").write_text(f"{status((100, 160))}\n")
    assert in_job(ENDS).stdout == ""
    done = in_job(fault, ENDS)
    assert done.stdout == "ends\n"
    assert f"hidl: the run ends here: {why}\n" in done.stderr


def test_jobs_from_before_the_script_was_submitted_again_count_while_their_checkpoint_is_used(
    in_job: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    def keep(number: int, jobs: Sequence[Times], last: Times, state: str) -> None:
        directory = tmp_path / f"earlier.{number}"
        directory.mkdir()
        if jobs:
            (directory / "attempts.jsonl").write_text("\n".join(map(status, jobs)))
        document = json.loads(status(last)) | {"state": state}
        (directory / "status.json").write_text(json.dumps(document, indent=2))

    keep(1, [(10, 50), (60, None)], (100, None), "LOST")
    keep(2, [], (200, 220), "FAILED")
    assert in_job("continues=", USED).stdout.split() == ["200.000"]  # 40 + 40 + 100 + 20
    (tmp_path / "attempts.jsonl").write_text(f"{status((300, 301))}\n")
    assert in_job(USED).stdout.split() == ["201.000"]
    keep(3, [(400, 410)], (500, 510), "COMPLETED")
    keep(4, [(600, 605)], (600, 605), "FAILED")
    assert in_job("continues=", USED).stdout.split() == ["5.000"]


def test_the_submission_of_the_next_job_counts(script: str, tmp_path: Path) -> None:
    """A scheduler may need up to two minutes for it."""
    names = ("format_status", "add_attempt", "times_of_jobs", "record_end", "next_job")
    (tmp_path / "hosts").write_text("node1\n")
    variables = "job=7 step=1 started=$(date +%s.%N) not_run="
    stubs = ("scontrol() { return 1; }", "submit_next_job() { sleep 1; }", variables)
    text = ["set -euo pipefail", *stubs, *functions_of(script, *names), "record_end FAILED 9", "next_job FAILED 9"]
    done = subprocess.run(["bash", "-c", "SLURM_JOB_ID=7\n" + "\n".join(text)], cwd=tmp_path, check=False)
    assert done.returncode == 9
    first, second = map(json.loads, (tmp_path / "attempts.jsonl").read_text().splitlines())
    assert second["ended"] - first["ended"] > 0.9
    assert second == first | {"ended": second["ended"]}


def test_a_run_whose_jobs_cannot_be_recorded_ends(script: str, tmp_path: Path) -> None:
    names = ("format_status", "add_attempt", "record_end", "continue_run")
    (tmp_path / "hosts").write_text("node1\n")
    stubs = (
        "job=7 step=1 started=1 jobs=1 saved=yes asked= not_run=",
        "count_idle() { :; }",
        "use_system_programs() { :; }",
        "ends_before_next_job() { return 1; }",
        "next_job() { echo next; exit; }",
    )
    text = "\n".join(["set -euo pipefail", *stubs, *functions_of(script, *names), "continue_run 9", "echo ends"])

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert run().stdout == "next\n"
    (tmp_path / "continued").unlink()
    (tmp_path / "attempts.jsonl").unlink()
    (tmp_path / "attempts.jsonl").symlink_to("/dev/full")
    done = run()
    assert done.stdout == "ends\n"
    assert "the run ends here: attempts.jsonl cannot be written" in done.stderr
    assert not (tmp_path / "continued").exists()


def test_a_job_that_cannot_count_the_jobs_before_it_ends_the_run(script: str, tmp_path: Path) -> None:
    stubs = ("continues=yes", 'end_as() { echo "$@"; exit; }')
    text = ["set -euo pipefail", *stubs, *functions_of(script, "begin_job", "reject_job", "times_of_jobs"), "begin_job"]
    done = subprocess.run(["bash", "-c", "\n".join(text)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "FAILED 1\n"
    assert "hidl: the run ends here: attempts.jsonl cannot be read" in done.stderr
