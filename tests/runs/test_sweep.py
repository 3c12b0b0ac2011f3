"""Sweeps whose points are separate jobs, on this machine and on a real Slurm: ``hidl run --matrix ... --as-jobs``."""

from __future__ import annotations

import json
import re
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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--as-jobs",), "--as-jobs requires --matrix"),
        (("--at-most", "2", "--matrix", "x=1,2"), "--at-most requires --as-jobs"),
        (("--as-jobs", "--no-wait", "--matrix", "x=1,2"), "--no-wait requires a batch system"),
    ],
)
def test_what_cannot_be_a_sweep_is_refused(hidl_with: Callable[..., Hidl], words: tuple[str, ...], told: str) -> None:
    hidl = hidl_with("mpi")
    refused = hidl("run", "--stack", "mpi", "--no-mpi", *words, "--", "echo", "{x}" if "x=1,2" in words else "y")
    assert refused.returncode == 2, refused.stderr
    assert told in refused.stderr
    assert not list(hidl.runs.glob("*"))


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
