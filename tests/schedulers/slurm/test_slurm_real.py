"""hidl on a real Slurm: what goes well, and what a user can do to a run."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import IO

import pytest

from tests.schedulers.slurm.conftest import Bench, read
from tests.waiting import patience, until


def wait_for_texts(stream: IO[str], texts: set[str]) -> None:
    """Read lines until each of these texts was in one."""
    left = set(texts)
    while left:
        line = stream.readline()
        assert line, f"ended before it told of {left}"
        left = {text for text in left if text not in line}


def test_a_run_on_two_nodes_ends_well(bench: Bench) -> None:
    completed = bench.run("--nodes", "2")
    assert completed.returncode == 0, completed.stderr
    assert "200" in completed.stdout


def test_a_failing_rank_fails_the_run(bench: Bench) -> None:
    completed = bench.run("--nodes", "2", "--set", "fail=true")
    assert completed.returncode == 8
    assert "in step 1 of 1 (FAILED, NonZeroExitCode)" in completed.stderr


def test_a_run_in_the_background_is_followed_by_its_logs(bench: Bench) -> None:
    run = bench.start("--set", "sleep=2")
    assert bench.hidl("logs", "--follow", run.name).stdout == "rank 0 of 1 here\n"
    assert bench.status(run)["state"] == "COMPLETED"


def test_a_cancelled_run_leaves_no_process_on_any_node(bench: Bench) -> None:
    run = bench.running(bench.start("--nodes", "4", "--set", "sleep=300"))
    assert bench.hidl("cancel", run.name).returncode == 0
    assert bench.status(run)["state"] == "CANCELLED"
    assert {node: bench.cluster.processes(node) for node in bench.cluster.nodes} == {
        node: [] for node in bench.cluster.nodes
    }


def test_a_run_that_waits_is_reported_with_its_reason_and_cancelled(bench: Bench) -> None:
    bench.change_site("--begin=now+1hour")
    run = bench.start()
    until(lambda: "BeginTime" in (bench.status(run)["reason"] or ""))
    assert bench.status(run)["state"] == "PENDING"
    assert bench.hidl("cancel", run.name).returncode == 0
    assert (bench.status(run)["state"], bench.state_in_slurm(run)) == ("CANCELLED", "CANCELLED")


def test_a_follower_sees_why_a_run_waits(bench: Bench) -> None:
    bench.change_site("--hold")
    run = bench.start()
    follower = bench.hidl.start("resume", run.name, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert follower.stderr is not None
    assert "JobHeldUser" in follower.stderr.readline()
    bench.cluster("scontrol", "release", bench.job(run))
    assert follower.wait(patience(60)) == 0


def test_ctrl_c_ends_the_run_that_the_command_started(bench: Bench) -> None:
    command = bench.hidl.start("run", "toy", "--site", "test-cluster", "--set", "sleep=300", stderr=subprocess.PIPE)
    until(lambda: bench.hidl.runs.is_dir() and list(bench.hidl.runs.iterdir()))
    (run,) = bench.hidl.runs.iterdir()
    bench.running(run)
    command.send_signal(signal.SIGINT)
    _, told = command.communicate(timeout=patience(300))
    assert command.returncode == 130
    assert "hidl resume" in told
    assert (bench.status(run)["state"], bench.state_in_slurm(run)) == ("INTERRUPTED", "CANCELLED")


@pytest.mark.parametrize("told", [pytest.param(signal.SIGHUP, marks=pytest.mark.deep), signal.SIGTERM])
def test_a_run_outlives_the_terminal_the_host_and_a_follower_that_is_interrupted(
    bench: Bench, told: signal.Signals
) -> None:
    words = ("run", "toy", "--site", "test-cluster", "--set", f"go={bench.go}")
    command = bench.hidl.start(*words, stderr=subprocess.DEVNULL)
    until(lambda: bench.hidl.runs.is_dir() and list(bench.hidl.runs.iterdir()))
    (run,) = bench.hidl.runs.iterdir()
    bench.running(run)
    command.send_signal(told)
    assert command.wait(patience(30)) == 130
    follower = bench.hidl.start("resume", run.name, stderr=subprocess.PIPE)
    assert follower.stderr is not None
    follower.stderr.readline()  # it follows
    follower.send_signal(signal.SIGINT)
    assert "hidl resume" in follower.communicate(timeout=patience(300))[1]
    assert bench.status(run)["state"] == "RUNNING"
    bench.go.touch()
    assert bench.hidl("resume", run.name).returncode == 0


def test_hidl_is_killed_and_the_run_is_resumed(bench: Bench) -> None:
    words = ("run", "toy", "--site", "test-cluster", "--set", f"go={bench.go}")
    command = bench.hidl.start(*words, stderr=subprocess.DEVNULL)
    until(lambda: bench.hidl.runs.is_dir() and list(bench.hidl.runs.iterdir()))
    (run,) = bench.hidl.runs.iterdir()
    bench.running(run)
    command.kill()
    command.wait()
    bench.go.touch()
    assert bench.hidl.json("resume", run.name)["steps"][0]["metrics"]["rate"]["value"] == pytest.approx(100, rel=2e-3)


@pytest.mark.deep
def test_several_runs_are_resumed_at_once_and_the_gravest_end_counts(bench: Bench) -> None:
    good, bad = bench.start("--set", "sleep=2"), bench.start("--set", "fail=true", "--set", "sleep=3")
    document = bench.hidl.json("resume", good.name, bad.name, status=8)
    assert {run["run"]: run["state"] for run in document["runs"]} == {good.name: "COMPLETED", bad.name: "FAILED"}


def test_all_unfinished_runs_are_resumed(bench: Bench) -> None:
    assert bench.run().returncode == 0
    runs = {bench.start("--set", f"go={bench.go}").name for _ in range(2)}
    follower = bench.hidl.start("resume", "--all", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert follower.stderr is not None
    wait_for_texts(follower.stderr, runs)
    bench.go.touch()
    document, _ = follower.communicate(timeout=patience(300))
    assert {run["run"] for run in json.loads(document)["runs"]} == runs


def test_a_table_is_watched_until_all_have_ended(bench: Bench) -> None:
    run = bench.running(bench.start("--set", f"go={bench.go}"))
    watcher = bench.hidl.start("status", "--watch", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watcher.stderr is not None
    wait_for_texts(watcher.stderr, {f"{run.name}: running"})
    bench.go.touch()
    table, _ = watcher.communicate(timeout=patience(300))
    assert watcher.returncode == 0
    assert "COMPLETED" in table


def test_what_the_users_environment_asks_for_does_not_win_over_the_script(bench: Bench) -> None:
    variables = {"SBATCH_TIMELIMIT": "7", "SBATCH_JOB_NAME": "other", "SBATCH_ARRAY_INX": "1-3", "SQUEUE_FORMAT": "%u"}
    completed = bench.run("--time", "2:00", "--json", **variables)
    assert completed.returncode == 0, completed.stderr
    number = json.loads(completed.stdout)["job"]
    told = bench.cluster("squeue", "-h", "--states=all", f"--jobs={number}", "-o", "%i %j %l").stdout
    assert told.split() == [number, "hidl-toy", "2:00"]


def test_an_array_in_the_sites_lines_is_rejected(bench: Bench) -> None:
    bench.change_site("--array=1-2")
    completed = bench.run()
    assert completed.returncode == 3
    assert "`--array` starts several jobs in one run directory" in completed.stderr
    assert "--matrix" in completed.stderr


def test_the_end_is_reported_in_seconds(bench: Bench) -> None:
    run = bench.running(bench.start("--set", "sleep=300"))
    follower = bench.hidl.start("resume", run.name, stderr=subprocess.DEVNULL)
    time.sleep(2)
    bench.cluster("scancel", bench.job(run))
    until(lambda: bench.state_in_slurm(run) == "CANCELLED")
    assert follower.wait(patience(30)) == 8
    assert "CANCELLED" in read(run / "status.json")


def test_options_of_a_run_reach_slurm_and_a_run_starts_after_another(bench: Bench) -> None:
    first = bench.start("--set", "sleep=0", "--hold", "--comment", "two words", "--job-name", "first")
    shown = bench.cluster("scontrol", "show", "job", bench.job(first)).stdout
    assert "JobName=first" in shown
    assert "Comment=two words" in shown
    assert "Reason=JobHeldUser" in shown
    second = bench.start("--set", "sleep=0", "--after", first.name)
    assert (
        "Dependency=afterok:" + bench.job(first) in bench.cluster("scontrol", "show", "job", bench.job(second)).stdout
    )
    bench.cluster("scontrol", "release", bench.job(first))
    bench.until_state(second, "COMPLETED")
    assert bench.status(first)["state"] == "COMPLETED"
    third = bench.start("--set", "sleep=0", "--after", first.name)
    assert "--dependency" not in read(third / "job.sh")
    failed = bench.start("--set", "fail=true")
    bench.until_state(failed, "FAILED")
    refused = bench.run("--after", failed.name)
    assert refused.returncode == 6
    assert "this run ended in state FAILED" in refused.stderr
