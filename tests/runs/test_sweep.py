"""Sweeps whose points are separate jobs, on this machine and on a real Slurm: ``hidl run --matrix ... --as-jobs``."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.site.job_options import line_after, starts_after
from tests.cluster.cluster import LivingCluster
from tests.conftest import Hidl
from tests.waiting import until

#: Prints a metric, and fails for x=2 until the file exists.
FAILS = """
import os, sys
x, file = sys.argv[1:]
if x == "2" and not os.path.exists(file):
    sys.exit("no file")
print("score", int(x) * 10)
"""
#: Prints a metric; for x=2 only when the file exists.
WAITS = """
import os, sys, time
x, file = sys.argv[1:]
while x == "2" and not os.path.exists(file):
    time.sleep(0.1)
print("score", int(x) * 10)
"""
OWN = ("--stack", "mpi", "--no-mpi", "--as-jobs", "--metric", "score[better=higher]=score ([0-9]+)")


def points(document: dict[str, Any]) -> list[tuple[str, str, float | None]]:
    return [
        (point["parameters"]["x"], point["state"], point["metrics"].get("score", {}).get("value"))
        for point in document["points"]
    ]


def state(run: Path) -> str | None:
    try:
        found: str = json.loads((run / "status.json").read_text())["state"]
    except FileNotFoundError:
        return None
    return found


def only_sweep(hidl: Hidl) -> Path:
    (sweep,) = (hidl.runs.parent / "sweeps").iterdir()
    return sweep


def test_failed_points_run_again_on_this_machine(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = hidl_with("mpi")
    words = ("--matrix", "x=1,2,3", "--", "python", "-c", FAILS, "{x}", str(tmp_path / "file"))
    first = hidl("run", *OWN, *words)
    assert first.returncode == 8, first.stderr
    assert "3 jobs, at most 1 at once" in first.stderr
    assert "1 of 3 points failed; to run them again: hidl resume " in first.stderr
    rows = [line.split() for line in first.stdout.splitlines()]
    assert [(row[0], row[2]) for row in rows[1:]] == [("1", "completed"), ("2", "failed"), ("3", "completed")]
    assert rows[1][-1] == "10"

    (tmp_path / "file").touch()
    again = hidl.json("resume", only_sweep(hidl).name)
    assert points(again) == [("1", "COMPLETED", 10), ("2", "COMPLETED", 20), ("3", "COMPLETED", 30)]
    assert [len(point["runs"]) for point in again["points"]] == [1, 2, 1]
    assert len(list(hidl.runs.iterdir())) == 4
    # Nothing is left to do: no further run.
    assert points(hidl.json("resume", only_sweep(hidl).name[-4:])) == points(again)
    assert len(list(hidl.runs.iterdir())) == 4


def test_an_interrupted_sweep_is_completed(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = hidl_with("mpi")
    words = ("--matrix", "x=1,2,3", "--", "python", "-c", WAITS, "{x}", str(tmp_path / "file"))
    started = hidl.start("run", *OWN, *words, stderr=subprocess.PIPE)
    sweep = until(lambda: next((hidl.runs.parent / "sweeps").glob("*/sweep.json"), None))
    running = until(lambda: json.loads(sweep.read_text())["points"][1]["runs"])
    until(lambda: state(hidl.runs / running[0]) == "RUNNING")
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate()
    assert started.returncode == 130, errors
    assert "to run the remaining points: hidl resume" in errors
    assert state(hidl.runs / running[0]) in ("CANCELLED", "INTERRUPTED")
    (tmp_path / "file").touch()
    assert points(hidl.json("resume", sweep.parent.name)) == [
        ("1", "COMPLETED", 10),
        ("2", "COMPLETED", 20),
        ("3", "COMPLETED", 30),
    ]


def start_waiting(hidl: Hidl, file: Path, *options: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a sweep whose second point waits for a file; returns as soon as it does."""
    words = ("--matrix", "x=1,2,3", "--", "python", "-c", WAITS, "{x}", str(file))
    started = hidl.start("run", *OWN, *options, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sweep = until(lambda: next((hidl.runs.parent / "sweeps").glob("*/sweep.json"), None))
    (running,) = until(lambda: runs_of(sweep.parent)[1])
    until(lambda: state(hidl.runs / running) == "RUNNING")
    return started, sweep.parent


def runs_of(sweep: Path) -> list[list[str]]:
    return [point["runs"] for point in json.loads((sweep / "sweep.json").read_text())["points"]]


def test_two_commands_share_the_points_of_a_sweep(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = hidl_with("mpi")
    started, sweep = start_waiting(hidl, tmp_path / "file")
    second = hidl.start("resume", sweep.name, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: "cancelled" in (sweep / "sweep.json").read_text())  # it has begun
    (tmp_path / "file").touch()
    for each in (started, second):
        _, errors = each.communicate()
        assert each.returncode == 0, errors
    assert [len(runs) for runs in runs_of(sweep)] == [1, 1, 1]
    assert len(list(hidl.runs.iterdir())) == 3


def test_a_cancelled_sweep_submits_nothing_more(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = hidl_with("mpi")
    started, sweep = start_waiting(hidl, tmp_path / "file")
    runs = [run for point in runs_of(sweep) for run in point]
    # They may have started in different seconds.
    name = os.path.commonprefix([sweep.name, *runs])  # noqa: RUF071
    for command in ("cancel", "resume"):
        ambiguous = hidl(command, name)
        assert ambiguous.returncode == 2, ambiguous.stderr
        assert f"1 sweep(s) and {len(runs)} run(s) match {name!r}" in ambiguous.stderr
    assert hidl("cancel", sweep.name).returncode == 0
    _, errors = started.communicate()
    assert started.returncode == 8
    assert f"sweep {sweep.name} has been cancelled" in errors
    assert [len(runs) for runs in runs_of(sweep)] == [1, 1, 0]
    (tmp_path / "file").touch()
    again = hidl.json("resume", sweep.name)
    assert points(again) == [("1", "COMPLETED", 10), ("2", "COMPLETED", 20), ("3", "COMPLETED", 30)]


def test_jobs_in_a_queue_continue_without_the_terminal(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    hidl = on_cluster("mpi")
    started, sweep = start_waiting(hidl, tmp_path / "file", "--site", "test-cluster", "--at-most", "1")
    until(lambda: all(runs_of(sweep)))
    started.send_signal(signal.SIGHUP)
    _, errors = started.communicate()
    assert started.returncode == 130, errors
    assert f"run {runs_of(sweep)[2][0]} continues; follow it with hidl resume" in errors
    (tmp_path / "file").touch()
    assert points(hidl.json("resume", sweep.name)) == [(str(x), "COMPLETED", 10 * x) for x in (1, 2, 3)]
    assert [len(runs) for runs in runs_of(sweep)] == [1, 1, 1]


def test_a_parameter_may_have_the_name_of_a_column(hidl_with: Callable[..., Hidl]) -> None:
    done = hidl_with("mpi")("run", *OWN, "--matrix", "state=1,2", "--", "echo", "score", "{state}")
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split()[0] == "state"
    assert "state of the job" in header
    assert [row.split()[0] for row in rows] == ["1", "2"]
    assert all("completed" in row for row in rows)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--as-jobs",), "--as-jobs requires --matrix"),
        (("--at-most", "2", "--matrix", "x=1,2"), "--at-most requires --as-jobs"),
        (("--as-jobs", "--no-wait", "--matrix", "x=1,2"), "--no-wait requires a batch system"),
        (("--as-jobs", "--save-tuning", "--matrix", "x=1,2"), "--as-jobs and --save-tuning cannot be combined"),
    ],
)
def test_what_cannot_be_a_sweep_is_refused(hidl_with: Callable[..., Hidl], words: tuple[str, ...], told: str) -> None:
    hidl = hidl_with("mpi")
    refused = hidl("run", "--stack", "mpi", "--no-mpi", *words, "--", "echo", "{x}" if "x=1,2" in words else "y")
    assert refused.returncode == 2, refused.stderr
    assert told in refused.stderr
    assert not list(hidl.runs.glob("*"))


def test_a_refused_point_names_the_way_on(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    hidl = on_cluster("mpi")
    refuses = tmp_path / "bin" / "sbatch"
    refuses.parent.mkdir()
    real = shutil.which("sbatch", path=hidl.environment["PATH"])
    refuses.write_text(
        f'#!/bin/sh\ncase "$*" in *job.sh*) echo x >> {tmp_path}/calls ;; esac\n'
        f'if [ "$(wc -l < {tmp_path}/calls)" = 2 ]; then\n'
        '    echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2\n    exit 1\nfi\n'
        f'exec {real} "$@"\n'
    )
    refuses.chmod(0o755)
    limited = Hidl(hidl.environment | {"PATH": f"{refuses.parent}:{hidl.environment['PATH']}"})
    words = ("--matrix", "x=1,2,3", "--", "python", "-c", FAILS, "{x}", str(tmp_path / "calls"))
    refused = limited("run", *OWN, "--site", "test-cluster", *words)
    assert refused.returncode == 6, refused.stderr
    assert f"1 of 3 points are submitted; to follow them and submit the rest: hidl resume {only_sweep(hidl).name}" in (
        refused.stderr
    )
    assert points(hidl.json("resume", only_sweep(hidl).name)) == [(str(x), "COMPLETED", 10 * x) for x in (1, 2, 3)]


def test_jobs_of_a_batch_system_start_one_after_another(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    hidl = on_cluster("mpi")
    words = ("--matrix", "x=1,2,3,4", "--", "python", "-c", FAILS, "{x}", str(tmp_path / "file"))
    submitted = hidl("run", *OWN, "--site", "test-cluster", "--at-most", "2", "--no-wait", "--json", *words)
    assert submitted.returncode == 0, submitted.stderr
    runs = [hidl.runs / point["run"] for point in json.loads(submitted.stdout)["points"]]
    jobs = [json.loads((run / "job.json").read_text())["id"] for run in runs]
    scripts = [(run / "job.sh").read_text() for run in runs]
    after = [re.findall(r"^#SBATCH --dependency=afterany:(\d+)$", script, re.MULTILINE) for script in scripts]
    assert after == [[], [], [jobs[0]], [jobs[1]]]

    until(lambda: all(state(run) in ("COMPLETED", "FAILED") for run in runs))
    ends = [json.loads((run / "status.json").read_text()) for run in runs]
    assert [each["state"] for each in ends] == ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED"]
    assert all(ends[later]["started"] >= ends[later - 2]["ended"] for later in (2, 3))

    (tmp_path / "file").touch()
    again = hidl.json("resume", only_sweep(hidl).name)
    assert points(again) == [(str(x), "COMPLETED", 10 * x) for x in (1, 2, 3, 4)]
    assert [len(point["runs"]) for point in again["points"]] == [1, 2, 1, 1]


@pytest.mark.parametrize(
    ("scheduler", "line"),
    [
        ("slurm", "#SBATCH --dependency=afterany:7"),
        ("lsf", '#BSUB -w "ended(7)"'),
        ("pbs", "#PBS -W depend=afterany:7"),
        ("flux", "# flux: --dependency=afterany:7"),
    ],
)
def test_each_batch_system_can_start_a_job_after_another(scheduler: str, line: str) -> None:
    assert starts_after(scheduler)
    assert line_after(scheduler, "7") == line
    assert not starts_after("local")
