"""Runs that several jobs complete, on this machine and on a real Slurm: ``hidl run --until-done``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.record import Run, State
from tests.cluster.cluster import LivingCluster
from tests.cluster.own_ssh import with_own_ssh
from tests.conftest import REPOSITORY, SHELLCHECK, Hidl
from tests.waiting import patience, until

COUNTS = REPOSITORY / "tests" / "programs" / "counts.py"
STEPS = REPOSITORY / "tests" / "programs" / "steps.py"
OWN = ("--stack", "mpi", "--no-mpi", "--until-done")


def only_run(hidl: Hidl) -> Path:
    (run,) = hidl.runs.iterdir()
    return run


def start(hidl: Hidl, *words: str) -> Path:
    completed = hidl("run", *OWN, "--no-wait", "--json", *words)
    assert completed.returncode == 0, completed.stderr
    return Path(json.loads(completed.stdout)["directory"])


def printed(run: Path) -> list[str]:
    """Return what the program printed; Hydra adds lines of its own if a rank is killed."""
    return re.findall(r"^(?:begins|done) at \d+$", (run / "stdout.log").read_text(), re.MULTILINE)


def attempts(run: Path) -> list[Any]:
    """Return the ended jobs. One that submitted the next job at its end recorded its end twice."""
    lines = map(json.loads, (run / "attempts.jsonl").read_text().splitlines())
    return list({each["started"]: each for each in lines}.values())


def is_running(pid: str) -> bool:
    """Return whether a process exists and has not ended; init may collect those that have ended late."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not stat.rpartition(")")[2].strip().startswith("Z")


def test_a_run_continues_after_its_time_limit_and_after_a_crash(hidl_with: Callable[..., Hidl]) -> None:
    hidl = hidl_with("mpi")
    completed = hidl("run", *OWN, "--time", f"0:{patience(8):02.0f}", "--", "python", str(COUNTS), "6", "2", "4")
    assert completed.returncode == 0, completed.stderr
    run = only_run(hidl)
    assert [(each["state"], each["exit_status"]) for each in attempts(run)] == [("TIMEOUT", 75), ("FAILED", 9)]
    assert printed(run) == ["begins at 0", "begins at 2", "begins at 4", "done at 6"]
    assert "job 2 of at most 20 ended with status 9; the next one continues" in (run / "stderr.log").read_text()
    status = hidl.json("status", run.name)
    assert status["state"] == "COMPLETED"
    assert len(status["attempts"]) == 2


def test_a_run_without_progress_ends_with_the_reason(hidl_with: Callable[..., Hidl]) -> None:
    hidl = hidl_with("mpi")
    completed = hidl("run", *OWN, "--", "python", "-c", "import sys; sys.exit(3)")
    assert completed.returncode == 8
    assert "two jobs in a row saved nothing new in " in completed.stderr
    assert len(attempts(only_run(hidl))) == 1


@pytest.mark.parametrize("script", ["", "#!/bin/sh\n#SBATCH --nodes=1\npython3 {}\n"])
def test_a_program_that_ignores_all_requests_is_ended(
    hidl_with: Callable[..., Hidl], tmp_path: Path, script: str
) -> None:
    """Also what it or its shell has started, which would run beside the next job."""
    hidl = hidl_with("mpi")
    program = tmp_path / "ignores.py"
    program.write_text(
        "import os, signal, subprocess, sys, time\n"
        "[signal.signal(each, signal.SIG_IGN) for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print('pids', os.getpid(), child.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    (tmp_path / "job.sh").write_text(script.format(program))
    words = [str(tmp_path / "job.sh")] if script else [*OWN[:3], "--", "python", str(program)]
    completed = hidl("run", "--no-check", "--until-done", "--time", "0:06", *words)
    assert completed.returncode == 8
    assert "two jobs in a row saved nothing new in " in completed.stderr
    pids = re.findall(r"^pids (\d+) (\d+)$", (only_run(hidl) / "stdout.log").read_text(), re.MULTILINE)
    assert len(pids) == 2
    assert until(lambda: not any(is_running(pid) for pair in pids for pid in pair))


def test_a_run_has_no_more_than_its_jobs(hidl_with: Callable[..., Hidl]) -> None:
    hidl = hidl_with("mpi")
    completed = hidl("run", *OWN, "--max-jobs", "3", "--", "python", str(COUNTS), "9", "", "1,2,3,4,5")
    assert completed.returncode == 8
    assert "it has used its 3 job(s) (--max-jobs)" in completed.stderr
    assert printed(only_run(hidl)) == ["begins at 0", "begins at 1", "begins at 2"]


def test_a_job_that_finds_the_limit_reached_records_that_it_has_not_run(hidl_with: Callable[..., Hidl]) -> None:
    """Its time counts as node time, but it is no job of the goodput."""
    hidl = hidl_with("mpi")
    completed = hidl("run", *OWN, "--max-jobs", "1", "--", "python", str(STEPS), "9", "0.05", "5=kill")
    assert completed.returncode == 8, completed.stderr
    directory = only_run(hidl)
    killed = json.loads((directory / "status.json").read_text()) | {"state": "RUNNING", "ended": None}
    assert "not_run" not in killed
    for name in ("status.json", "attempts.jsonl"):
        (directory / name).write_text(f"{json.dumps(killed)}\n")
    (directory / "continued").touch()
    again = subprocess.run(
        ["bash", "job.sh"], cwd=directory, env=hidl.environment, capture_output=True, text=True, check=False
    )
    assert (again.returncode, "it has used its 1 job(s) (--max-jobs)" in again.stderr) == (1, True), again.stderr
    assert json.loads((directory / "status.json").read_text())["not_run"] is True
    goodput = hidl.json("status", directory.name)["goodput"]
    assert (goodput["jobs"], goodput["jobs_without_step"], goodput["jobs_without_end"]) == (1, 0, 1)
    run = Run(directory)
    assert run.end_as(State.CANCELLED) == run.status()
    assert run.status().not_run


def test_a_run_that_is_cancelled_does_not_continue(hidl_with: Callable[..., Hidl]) -> None:
    hidl = hidl_with("mpi")
    run = start(hidl, "--", "python", str(COUNTS), "3", "2")
    until(lambda: (run / "checkpoint" / "count").exists() and (run / "checkpoint" / "count").read_text() == "2")
    assert hidl("cancel", run.name).returncode == 0
    assert hidl.json("status", run.name)["state"] == "CANCELLED"
    assert not (run / "attempts.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["dask-merge", "--until-done"], "workload dask-merge cannot continue in another job: it has no checkpoints"),
        (["gpt", "--until-done", "--scale", "1,2"], "--until-done cannot be combined with --scale, --matrix or"),
        (["gpt", "--max-jobs", "3"], "--max-jobs requires --until-done"),
        (["gpt", "--max-node-hours", "3"], "--max-node-hours requires --until-done"),
        (["gpt", "--until-done", "--max-node-hours", "3"], "--max-node-hours requires a time limit for each job"),
        (["gpt", "--until-done", "--time", "10", "--max-cost", "3"], "--max-cost requires a charge, which the site's"),
        (["gpt", "--until-done", "--time", "60", "--max-node-hours", "0.5"], "a single job may use 1 node-hours"),
    ],
)
def test_what_cannot_continue_is_a_usage_error(hidl: Hidl, words: list[str], why: str) -> None:
    completed = hidl("run", *words, "--dry-run")
    assert completed.returncode == 2
    assert why in completed.stderr


@pytest.mark.parametrize("limits", [(), ("--max-node-hours", "10", "--max-cost", "9")])
@pytest.mark.parametrize("site", ["frontera", "summit"])
def test_shellcheck_finds_nothing_in_the_script_of_several_jobs(hidl: Hidl, site: str, limits: tuple[str, ...]) -> None:
    """Summit's jobs depend on each other; its file has no charge."""
    words = ("--site", site, "--nodes", "4", "--time", "60", "--account", "abc", "--dry-run", "--no-check")
    script = hidl("run", "gpt", *words, "--until-done", *(limits if site == "frontera" else limits[:2])).stdout
    assert ("used_seconds" in script) is bool(limits)
    checked = subprocess.run([SHELLCHECK, "-"], input=script, capture_output=True, text=True, check=False)
    assert checked.stdout == ""


def test_slurm_is_asked_for_a_signal_and_may_requeue(hidl: Hidl) -> None:
    plan = ("run", "gpt", "--site", "frontera", "--nodes", "4", "--time", "60", "--dry-run", "--no-check")
    script = hidl(*plan, "--until-done").stdout
    assert "#SBATCH --signal=B:USR1@360\n" in script
    assert "#SBATCH --requeue\n" in script
    plain = hidl(*plan).stdout
    assert "HIDL_STOP=" not in plain
    assert "--signal" not in plain


@pytest.mark.parametrize(
    ("document", "line", "end"),
    [
        ({"job_state": ["NODE_FAIL", "COMPLETING"]}, "", "continue 1"),
        ({"job_state": ["CANCELLED", "COMPLETING"]}, "", "cancelled"),
        ({"job_state": ["RUNNING"]}, "", "end COMPLETED 0"),
        (None, "COMPLETING NodeDown", "continue 1"),
        (None, "NODE_FAIL NodeDown", "continue 1"),
        (None, "COMPLETING None", "cancelled"),
        (None, "RUNNING None", "end COMPLETED 0"),
    ],
)
def test_a_job_that_loses_a_node_is_continued(
    hidl: Hidl, tmp_path: Path, document: dict[str, list[str]] | None, line: str, end: str
) -> None:
    """srun returns 0 if the nodes of all ranks are lost."""
    site = hidl.config / "sites" / "strict.yaml"
    site.parent.mkdir(parents=True)
    site.write_text("name: strict\nextends: frontera\ntitle: no requeue\npolicies: {directives: [--no-requeue]}\n")
    plan = ("run", "gpt", "--site", "strict", "--nodes", "4", "--time", "60", "--dry-run", "--no-check", "--until-done")
    script = hidl(*plan).stdout
    functions = re.findall(r"^(?:why_ended|finish)\(\) {.*?^}$", script, re.MULTILINE | re.DOTALL)
    assert len(functions) == 2
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    answer = f"echo '{json.dumps({'jobs': [document]})}'" if document else "exit 1"
    squeue.write_text(f'#!/bin/sh\ncase "$1" in\n--json) {answer} ;;\n*) echo "{line}" ;;\nesac\n')
    squeue.chmod(0o755)
    stubs = (
        "ended_early() { echo cancelled; exit; }",
        "continue_run() { echo continue $1; exit; }",
        "end_as() { echo end $*; }",
    )
    text = "\n".join(["set -euo pipefail", "job=7", *stubs, *functions, "finish COMPLETED 0"])
    done = subprocess.run(
        ["bash", "-c", text],
        env={"PATH": f"{squeue.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == end


@pytest.mark.parametrize("ended_by", ["signal", pytest.param("crash", marks=pytest.mark.deep)])
def test_slurm_continues_a_run_in_the_same_directory(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path, ended_by: str
) -> None:
    hidl = on_cluster("mpi")
    program = tmp_path / "counts.py"
    program.write_text(COUNTS.read_text())
    how = ("4", "2", "") if ended_by == "signal" else ("4", "", "2")
    run = start(hidl, "--site", "test-cluster", "--nodes", "1", "--", "python", str(program), *how)
    job = json.loads((run / "job.json").read_text())["id"]
    count = run / "checkpoint" / "count"
    until(lambda: count.exists() and count.read_text() == "2", otherwise=(run / "stderr.log").read_text)
    if ended_by == "signal":
        cluster("scancel", "--batch", "--signal=USR1", job)
    until((run / "attempts.jsonl").exists, otherwise=(run / "stderr.log").read_text)
    until(lambda: hidl.json("status", run.name)["state"] == "PENDING")
    cluster("scontrol", "update", f"JobId={job}", "StartTime=now")  # or it would wait two minutes
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, completed.stderr
    expected = ("PREEMPTED", 75) if ended_by == "signal" else ("FAILED", 137)
    assert [(each["state"], each["exit_status"]) for each in attempts(run)] == [expected]
    assert printed(run) == ["begins at 0", "begins at 2", "done at 4"]
    assert json.loads((run / "job.json").read_text())["id"] == job


def test_ranks_of_a_requeued_job_do_not_use_the_memory_of_killed_ones(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    hidl = on_cluster("mpi")
    program = tmp_path / "leaves_memory.py"
    program.write_text((COUNTS.parent / program.name).read_text())
    words = ("--site", "test-cluster", "--nodes", "1", "--ranks-per-node", "2", "--", "python", str(program))
    completed = hidl("run", "--stack", "mpi", "--until-done", "--no-wait", "--json", *words)
    assert completed.returncode == 0, completed.stderr
    run = Path(json.loads(completed.stdout)["directory"])
    until((run / "attempts.jsonl").exists, otherwise=(run / "stderr.log").read_text)
    until(lambda: hidl.json("status", run.name)["state"] == "PENDING")
    job = json.loads((run / "job.json").read_text())["id"]
    cluster("scontrol", "update", f"JobId={job}", "StartTime=now")
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, completed.stderr
    assert (run / "stdout.log").read_text().splitlines() == ["other memory"] * 2


def test_a_job_that_slurm_cancels_does_not_return(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    """The program stops in good order after SIGTERM, which is no reason to continue."""
    hidl = on_cluster("mpi")
    program = tmp_path / "counts.py"
    program.write_text(COUNTS.read_text())
    run = start(hidl, "--site", "test-cluster", "--nodes", "1", "--", "python", str(program), "4", "2", "")
    job = json.loads((run / "job.json").read_text())["id"]
    count = run / "checkpoint" / "count"
    until(lambda: count.exists() and count.read_text() == "2", otherwise=(run / "stderr.log").read_text)
    cluster("scancel", job)
    until(lambda: hidl.json("status", run.name)["state"] == "CANCELLED")
    assert not (run / "attempts.jsonl").exists()
    assert "CANCELLED" in cluster("squeue", "--states=all", "--noheader", "--format=%T", f"--jobs={job}").stdout


@pytest.fixture
def without_requeue(on_cluster: Callable[..., Hidl], tmp_path: Path) -> Hidl:
    """hidl on the cluster, as a site whose jobs may not be put back into the queue."""
    hidl = on_cluster("mpi")
    site = hidl.config / "sites" / "test-cluster.yaml"
    site.parent.mkdir(parents=True)
    site.write_text(
        "name: test-cluster\nextends: test-cluster\ntitle: jobs end for good\n"
        "policies: {default_time: '00:05:00', directives: [--no-requeue]}\n"
    )
    return hidl


def start_without_requeue(hidl: Hidl, tmp_path: Path, *words: str, options: Sequence[str] = ()) -> Path:
    program = tmp_path / "counts.py"
    program.write_text(COUNTS.read_text())
    return start(hidl, "--site", "test-cluster", "--nodes", "1", *options, "--", "python", str(program), *words)


def reaches(run: Path, number: str) -> None:
    count = run / "checkpoint" / "count"
    until(lambda: count.exists() and count.read_text() == number, otherwise=(run / "stderr.log").read_text)


def jobs_of(run: Path, cluster: LivingCluster) -> dict[str, str]:
    """Return the states of the run's jobs by id; Slurm lists ended ones for some minutes."""
    listed = cluster("squeue", "--states=all", "--noheader", "--format=%i %T %Z").stdout.splitlines()
    return {id: state for id, state, directory in map(str.split, listed) if directory == str(run)}


@pytest.mark.parametrize("ended_by", ["signal", "killed script", pytest.param("crash", marks=pytest.mark.deep)])
def test_a_job_that_may_not_be_requeued_is_continued_by_one_that_depends_on_it(
    without_requeue: Hidl, cluster: LivingCluster, tmp_path: Path, ended_by: str
) -> None:
    hidl = without_requeue
    run = start_without_requeue(hidl, tmp_path, *(("4", "", "2") if ended_by == "crash" else ("4", "2")))
    header = (run / "job.sh").read_text().partition("\n\n")[0]
    assert "#SBATCH --no-requeue" in header
    assert "#SBATCH --requeue" not in header
    first = json.loads((run / "job.json").read_text())["id"]
    reaches(run, "2")
    if ended_by == "signal":
        second = (run / "next").read_text().strip()
        assert jobs_of(run, cluster) == {first: "RUNNING", second: "PENDING"}
        assert hidl.json("status", run.name)["state"] == "RUNNING"
        cluster("scancel", "--batch", "--signal=USR1", first)
    elif ended_by == "killed script":
        cluster("scancel", "--batch", "--signal=KILL", first)
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, completed.stderr
    assert [line for line in printed(run) if "done" in line] == ["done at 4"]
    ended = [(each["job"], each["state"], each["exit_status"]) for each in attempts(run)]
    assert ended[0] == {
        "signal": (first, "PREEMPTED", 75), "killed script": (first, "RUNNING", None), "crash": (first, "FAILED", 137)
    }[ended_by]  # fmt: skip
    status = hidl.json("status", run.name)
    assert (status["state"], len(status["attempts"])) == ("COMPLETED", len(ended))
    assert until(lambda: "PENDING" not in jobs_of(run, cluster).values())
    assert not (run / "next").exists()


def is_rank_of(run: Path, process: Path) -> bool:
    """Return whether a process in /proc is a rank of the program ``steps.py``."""
    try:
        of_run = f"HIDL_RUN_ID={run.name}".encode() in (process / "environ").read_bytes()
        return of_run and b"steps.py" in (process / "cmdline").read_bytes()
    except OSError:
        return False


def test_a_job_that_was_killed_counts_until_its_last_recorded_step(
    without_requeue: Hidl, cluster: LivingCluster, tmp_path: Path
) -> None:
    hidl = without_requeue
    program = tmp_path / "steps.py"
    program.write_text(STEPS.read_text())
    words = ("--site", "test-cluster", "--nodes", "2", "--ranks-per-node", "1", "--stack", "mpi", "--until-done")
    completed = hidl("run", *words, "--no-wait", "--json", "--", "python", str(program), "25", "0.3")
    assert completed.returncode == 0, completed.stderr
    run = Path(json.loads(completed.stdout)["directory"])

    def steps() -> int:
        return max(
            (int(json.loads(file.read_text())["step"]) for file in run.glob("checkpoint/.jobs/*.json")), default=0
        )

    until(lambda: steps() >= 5, otherwise=(run / "stderr.log").read_text)
    for process in sorted(
        Path("/proc").glob("[0-9]*"), key=lambda process: is_rank_of(run, process)
    ):  # the script first
        with suppress(OSError):
            is_script = b"slurm_script" in (process / "cmdline").read_bytes() and (process / "cwd").resolve() == run
            if is_script or is_rank_of(run, process):
                os.kill(int(process.name), signal.SIGKILL)
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, completed.stderr
    (killed,) = attempts(run)
    assert killed["ended"] is None
    metrics = {
        name: metric["value"]
        for name, metric in json.loads((run / "metrics.json").read_text())["steps"][0]["metrics"].items()
    }
    last = json.loads((run / "status.json").read_text())
    assert 5 * 0.3 <= metrics["lost_work"] <= 25 * 0.3 * 2
    assert metrics["lost_node_hours"] == pytest.approx(2 * metrics["lost_work"] / 3600)
    assert 0 < metrics["restart_time"] < last["ended"] - last["started"]
    assert metrics["time_between_failures"] > last["ended"] - last["started"] + metrics["lost_work"]
    assert 25 * 0.3 / metrics["time_between_failures"] <= metrics["goodput"] < 1


@pytest.mark.parametrize("by", ["hidl", "scancel"])
def test_the_next_job_is_cancelled_with_the_running_one(
    without_requeue: Hidl, cluster: LivingCluster, tmp_path: Path, by: str
) -> None:
    hidl = without_requeue
    run = start_without_requeue(hidl, tmp_path, "4", "2")
    reaches(run, "2")
    until((run / "next").exists)
    if by == "hidl":
        assert hidl("cancel", run.name).returncode == 0
    else:
        cluster("scancel", json.loads((run / "job.json").read_text())["id"])
    assert until(lambda: hidl.json("status", run.name)["state"] == "CANCELLED")
    assert until(lambda: set(jobs_of(run, cluster).values()) == {"CANCELLED"})
    assert len(jobs_of(run, cluster)) == 2
    assert printed(run) == ["begins at 0"]


def test_only_the_first_job_is_held(without_requeue: Hidl, cluster: LivingCluster, tmp_path: Path) -> None:
    hidl = without_requeue
    run = start_without_requeue(hidl, tmp_path, "4", "2", options=("--hold",))
    first = json.loads((run / "job.json").read_text())["id"]
    assert "--hold" in (run / "job.sh").read_text()
    cluster("scontrol", "release", first)
    reaches(run, "2")
    second = until(lambda: (run / "next").exists() and (run / "next").read_text().strip())
    assert cluster("squeue", "--noheader", "--format=%r", f"--jobs={second}").stdout.strip() == "Dependency"
    refused = hidl("run", "mpi-sanity", "--site", "test-cluster", "--nodes", "1", "--after", run.name, "--no-wait")
    assert refused.returncode == 2, refused.stderr
    assert f"--after {run.name}: this run continues in further jobs (--until-done)" in refused.stderr
    (run / "stop").touch()
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, completed.stderr
    assert printed(run) == ["begins at 0", "begins at 2", "done at 4"]


def test_the_next_job_of_slurm_gets_the_defaults_of_the_user() -> None:
    following = SYSTEMS["slurm"].next_job
    assert following is not None
    done = subprocess.run(
        ["bash", "-c", f'set -eu; job=7 script=./job.sh; {following.words}; printf "%s\n" "${{words[@]}}"'],
        env={"SLURM_JOB_RESERVATION": "main tenance", "SBATCH_WCKEY": "key", "SBATCH_CLUSTERS": "other"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        *("sbatch", "--parsable", "--dependency=afterany:7", "--reservation=main tenance", "--wckey=key"),
        *("./job.sh", "7"),
    ]


def test_the_last_job_has_no_next_one(without_requeue: Hidl, cluster: LivingCluster, tmp_path: Path) -> None:
    hidl = without_requeue
    run = start_without_requeue(hidl, tmp_path, "9", "", "1,2,3,4", options=("--max-jobs", "2"))
    completed = hidl("resume", run.name)
    assert completed.returncode == 8
    assert "it has used its 2 job(s) (--max-jobs)" in (run / "stderr.log").read_text()
    assert printed(run) == ["begins at 0", "begins at 1"]
    assert len(jobs_of(run, cluster)) == 2


@pytest.mark.parametrize("ended_by", ["crash", "killed script"])
def test_the_waiting_job_of_a_run_that_reaches_its_limit_does_not_train(
    without_requeue: Hidl, cluster: LivingCluster, tmp_path: Path, ended_by: str
) -> None:
    """It is cancelled if the job before can do so, and otherwise ends at once."""
    hidl = without_requeue
    limit = ("--time", "5", "--max-node-hours", str(300 / 3600))
    words = ("4", "", "1") if ended_by == "crash" else ("4", "1")
    run = start_without_requeue(hidl, tmp_path, *words, options=limit)
    if ended_by == "killed script":
        reaches(run, "1")
        until((run / "next").exists)
        cluster("scancel", "--batch", "--signal=KILL", json.loads((run / "job.json").read_text())["id"])
    completed = hidl("resume", run.name)
    assert completed.returncode == 8, completed.stderr
    assert "the run ends here: the next job could exceed --max-node-hours 0.0833333: " in (
        (run / "stderr.log").read_text()
    )
    assert printed(run) == ["begins at 0"]
    assert until(lambda: not {"PENDING", "RUNNING"} & set(jobs_of(run, cluster).values()))
    assert len(jobs_of(run, cluster)) == 2
    assert not (run / "next").exists()


@pytest.mark.parametrize("ended_by", ["request", pytest.param("crash", marks=pytest.mark.deep)])
def test_the_supervisor_of_hosts_without_a_queue_starts_the_program_again(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path, ended_by: str
) -> None:
    hidl = with_own_ssh(on_cluster("mpi"), cluster, tmp_path)
    program = tmp_path / "counts.py"
    program.write_text(COUNTS.read_text())
    how = ("4", "2") if ended_by == "request" else ("4", "", "2")
    run = start(hidl, "--hosts", "node1", "--", "python", str(program), *how)
    job = json.loads((run / "job.json").read_text())["id"]
    if ended_by == "request":
        reaches(run, "2")
        (run / "stop").touch()
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, completed.stderr
    assert printed(run) == ["begins at 0", "begins at 2", "done at 4"]
    assert [each["job"] for each in attempts(run)] == [job]
    assert hidl.json("status", run.name)["state"] == "COMPLETED"
