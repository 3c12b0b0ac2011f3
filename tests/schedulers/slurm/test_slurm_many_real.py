"""Two hundred runs at once: what Slurm hears of those who follow them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hidl_cli.plan.launch_plan import Plan, create_run
from hidl_cli.schedulers import scheduler
from hidl_cli.schedulers.slurm import SlurmBackend
from tests.conftest import Hidl
from tests.schedulers.slurm.conftest import Bench, first_on_path
from tests.waiting import patience, until

RUNS = 200
FOLLOWERS = 6

#: A job that says what a run's script says, and does next to nothing. It waits until it is let go.
SCRIPT = """#!/bin/bash
#SBATCH --hold --output=stdout.log --error=stderr.log
say() {
    printf '{"state": "%s", "step": 1, "steps": 1, "started": 1, "ended": %s, "exit_status": %s, "hosts": []}' "$@" \\
        > new
    mv new status.json
}
say RUNNING null null
mkdir -p steps/1
metrics='[{"name": "rate", "value": 1, "unit": "items/s", "samples": [1]}]'
document='{"schema": "hidl.metrics/1", "world": {"size": 1}, "parameters": {}, "metrics": '"$metrics"'}'
echo "$document" > steps/1/metrics.json
say COMPLETED 2 0
"""


@pytest.fixture
def submitted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of so many runs that were handed to Slurm."""
    plan = Plan.from_json(bench.hidl.json("run", "toy", "--site", "test-cluster", "--dry-run")["plan"])
    for name in ("SLURM_CONF", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, bench.hidl.environment[name])
    names = [f"20260101-000000-toy-{number:04d}" for number in range(RUNS)]
    for name in names:
        scheduler("slurm").submit(create_run(replace(plan, run=name), SCRIPT))
    return names


@pytest.mark.deep
def test_two_hundred_runs_cost_one_question_per_interval_whichever_process_follows_them(
    bench: Bench, submitted: list[str], tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    log = f'echo "$(date +%s.%N) $(basename "$0")" >> {calls}; exec "$real" "$@"'
    path = [first_on_path(tmp_path, name, log) for name in ("squeue", "sacct", "sinfo")][-1]
    hidl = Hidl(bench.hidl.environment | {"PATH": path})

    shown = hidl.json("status", "--number", str(RUNS))["runs"]
    assert {run["run"] for run in shown if run["state"] == "PENDING"} == set(submitted)
    assert [line.split()[1] for line in calls.read_text().splitlines()] == ["squeue"]

    followers = [
        hidl.start("resume", name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in submitted[-FOLLOWERS:]
    ]
    follower_of_all = hidl.start("resume", *submitted, "--json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    until(lambda: len(calls.read_text().splitlines()) >= 6)  # they follow
    bench.cluster("scontrol", "release", ",".join(bench.job(bench.hidl.runs / name) for name in submitted))
    document, _ = follower_of_all.communicate(timeout=patience(300))
    assert [follower.wait(patience(60)) for follower in followers] == [0] * FOLLOWERS
    ended = {run["run"] for run in json.loads(document)["runs"] if run["state"] == "COMPLETED" and run["steps"]}
    assert ended == set(submitted)
    times = [float(line.split()[0]) for line in calls.read_text().splitlines() if line.endswith("squeue")]
    assert min(later - earlier for earlier, later in pairwise(times)) > 0.9 * SlurmBackend.first_interval
