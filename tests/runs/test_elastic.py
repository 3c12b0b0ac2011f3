"""Runs whose jobs have different numbers of nodes: ``hidl run --until-done --nodes 1-2``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.cluster import LivingCluster
from tests.conftest import REPOSITORY, SHELLCHECK, Hidl
from tests.runs.test_until_done import attempts
from tests.tiers import deep
from tests.waiting import until

ELASTIC = REPOSITORY / "tests" / "programs" / "elastic.py"
ON_FRONTERA = ("--site", "frontera", "-p", "small", "--account", "abc", "--time", "60", "--dry-run", "--no-check")
DATA = ("--set", "data=/data")
#: 30 iterations of kmeans, with a checkpoint after each.
KMEANS = ("points=60000", "columns=3", "clusters=20", "max_iterations=15", "steps=2", "warmup=1", "spread=8")
#: Relative difference of weights: the sums over ranks have another order.
TOLERANCE = 1e-12
#: Relative difference of the weights of gpt, which are in single precision.
GPT_TOLERANCE = 1e-4


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["kmeans", "--nodes", "1-2"], "--nodes 1-2 requires --until-done"),
        (["kmeans", "--until-done", "--nodes", "2-1"], "invalid nodes '2-1': must be a number of at least 1, or a"),
        (["kmeans", "--until-done", "--nodes", "0"], "invalid nodes '0'"),
        (["kmeans", "--until-done", "--nodes", "1-2", "--scale", "1,2"], "--scale and --nodes cannot be combined"),
        (["kmeans-weak", "--until-done", "--nodes", "1-2"], "not supported with per_rank=True of workload kmeans-weak"),
        (["resnet50", "--until-done", "--nodes", "1-2"], "workload resnet50: its global batch depends on the number"),
        (["dask-merge", "--until-done", "--nodes", "1-2"], "workload dask-merge cannot continue in another job"),
        (["gpt", "--until-done", "--nodes", "1-2"], "requires total_batch and data of workload gpt"),
        (["gpt-strong", "--until-done", "--nodes", "1-2"], "requires data of workload gpt-strong"),
        (
            ["gpt-strong", "--until-done", "--nodes", "1-2", *DATA, "--set", "parallel=fsdp"],
            "not supported with parallel=fsdp of workload gpt-strong",
        ),
        (
            ["gpt-strong", "--until-done", "--nodes", "1-2", "--ranks-per-node", "24", *DATA],
            "total_batch=64 cannot be divided among the 24 ranks of 1 node(s)",
        ),
        (["--until-done", "--nodes", "1-2", "--", "python", "train.py"], "requires a program that keeps its global"),
        (
            ["--until-done", "--nodes", "1-2", "--env-var", "HIDL_TOTAL_BATCH=x", "--", "python", "train.py"],
            "invalid HIDL_TOTAL_BATCH 'x'",
        ),
        (
            ["--until-done", "--nodes", "1-2", "--env-var", "HIDL_TOTAL_BATCH=7", "--", "torchrun", "a.py"],
            "HIDL_TOTAL_BATCH=7 cannot be divided among the",
        ),
    ],
)
def test_runs_that_need_a_fixed_number_of_nodes_are_refused(hidl: Hidl, words: list[str], why: str) -> None:
    program = words.index("--") if "--" in words else len(words)
    completed = hidl("run", *words[:program], *ON_FRONTERA, *words[program:])
    assert completed.returncode == 2, completed.stdout
    assert why in completed.stderr


@pytest.mark.parametrize(("site", "system"), [("summit", "LSF"), ("polaris", "PBS")])
def test_schedulers_without_ranges_are_refused(hidl: Hidl, site: str, system: str) -> None:
    words = ("kmeans", "--site", site, "--until-done", "--nodes", "1-2", "--device", "cpu", "--dry-run", "--no-check")
    refused = hidl("run", *words)
    assert refused.returncode == 2
    assert f"--nodes 1-2 is not supported with {system}: its jobs have a fixed number of nodes" in refused.stderr


def test_a_batch_script_and_an_allocation_are_refused(hidl: Hidl, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --time=10\nsrun hostname\n")
    words = ("run", "--until-done", "--nodes", "1-2", *ON_FRONTERA)
    refused = hidl(*words, str(tmp_path / "job.sh"))
    assert refused.returncode == 2
    assert "--nodes 1-2 is not supported with a batch script" in refused.stderr


def test_the_limits_of_the_smallest_number_of_nodes_hold(hidl: Hidl) -> None:
    refused = hidl("run", "kmeans", *ON_FRONTERA, "-p", "normal", "--until-done", "--nodes", "2-4")
    assert refused.returncode == 6
    assert "2 nodes requested; partition normal of site frontera allows 3 to 512 nodes" in refused.stderr


def test_the_upper_bound_counts_for_limits_and_estimates(hidl: Hidl) -> None:
    words = ("run", "kmeans", *ON_FRONTERA, "--until-done", "--nodes", "1-2")
    refused = hidl(*words, "--max-node-hours", "1.5")
    assert refused.returncode == 2
    assert "a single job may use 2 node-hours" in refused.stderr
    estimate = hidl(*[word for word in words if word != "--dry-run"], "--max-jobs", "3", "--estimate")
    assert "at most 3 jobs on 1 to 2 node(s) for at most 01:00:00 each = at most 6 node-hours" in estimate.stdout


@pytest.mark.parametrize("words", [("kmeans",), ("--env-var", "HIDL_TOTAL_BATCH=8", "--", "python", "train.py")])
def test_the_script_has_a_launch_for_each_number_of_nodes(hidl: Hidl, words: tuple[str, ...]) -> None:
    options = (*ON_FRONTERA, "--until-done", "--nodes", "1-2", "--ranks-per-node", "2")
    script = hidl("run", *(words[:1] if len(words) == 1 else words[:2]), *options, *words[2:]).stdout
    assert "#SBATCH --nodes=1-2\n" in script
    chosen = script[script.index("case $(wc -l < hosts) in") :]
    assert [chosen.index(f"ibrun -n {ranks} ") for ranks in (2, 4)] == sorted(
        chosen.index(f"ibrun -n {ranks} ") for ranks in (2, 4)
    )
    checked = subprocess.run([SHELLCHECK, "-"], input=script, capture_output=True, text=True, check=False)
    assert checked.stdout == ""
    fixed = hidl("run", *(words[:1] if len(words) == 1 else words[:2]), *ON_FRONTERA, "--until-done", *words[2:]).stdout
    assert "wc -l < hosts" not in fixed.partition("tell_program")[0]
    assert "#SBATCH --nodes=1\n" in fixed


def start(hidl: Hidl, *words: str) -> Path:
    program = words.index("--") if "--" in words else len(words)
    options = ("--site", "test-cluster", "--until-done", "--nodes", "1-2", "--ranks-per-node", "1")
    others = ("--scheduler-option=--exclude=node1,node2", "--env-var", "HIDL_CHECKPOINT_INTERVAL=0")
    completed = hidl("run", *words[:program], *options, *others, "--no-wait", "--json", *words[program:])
    assert completed.returncode == 0, completed.stderr
    return Path(json.loads(completed.stdout)["directory"])


def saved_steps(run: Path) -> int:
    names = (path.name for path in (run / "checkpoint").glob("step-*"))
    return max((int(name.removeprefix("step-")) for name in names), default=0)


@contextmanager
def without_node(cluster: LivingCluster, node: str, *, dies: bool) -> Iterator[None]:
    """Lose a node: its power, or Slurm regards it as down."""
    try:
        if dies:
            cluster.kill_node(node)
        else:
            for state in ("DOWN", "DRAIN"):  # a node that is only down returns when its slurmd reports
                cluster("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=lost")
        yield
    finally:
        if dies:
            cluster.start_node(node)
        cluster("scontrol", "update", f"NodeName={node}", "State=RESUME")
        until(lambda: (cluster.state(node) or "").lower() == "idle", otherwise=lambda: cluster.state(node))


def lose_a_node(hidl: Hidl, cluster: LivingCluster, run: Path, *, at: int, lost: int = 1, dies: bool = False) -> Any:
    """Lose a node of the first job when it has saved a step; return the run's status at its end.

    Args:
        hidl: hidl on the cluster.
        cluster: The cluster.
        run: The run.
        at: Number of the step.
        lost: Which of the job's nodes is lost; the script runs on 0.
        dies: Cut the node's power.
    """
    until(lambda: saved_steps(run) >= at, otherwise=(run / "stderr.log").read_text)
    hosts = json.loads((run / "status.json").read_text())["hosts"]
    assert hosts == ["node3", "node4"]
    job = json.loads((run / "job.json").read_text())["id"]
    with without_node(cluster, hosts[lost], dies=dies):
        if "--requeue" in (run / "job.sh").read_text():
            until(lambda: hidl.json("status", run.name)["state"] == "PENDING")
            cluster("scontrol", "update", f"JobId={job}", "StartTime=now")  # or it would wait two minutes
        completed = hidl("resume", run.name)
    assert completed.returncode == 0, (completed.stderr, (run / "stderr.log").read_text())
    return hidl.json("status", run.name)


@pytest.mark.parametrize(
    ("mode", "loss"),
    [
        ("requeue", (1, False)),
        deep("requeue", (0, True)),
        deep("requeue", (1, True)),
        ("dependency", (1, False)),
        deep("dependency", (0, True)),
    ],
)
def test_a_program_continues_on_fewer_nodes_with_the_same_batch(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path, mode: str, loss: tuple[int, bool]
) -> None:
    hidl = on_cluster("mpi")
    if mode == "dependency":
        site = hidl.config / "sites" / "test-cluster.yaml"
        site.parent.mkdir(parents=True)
        site.write_text(
            "name: test-cluster\nextends: test-cluster\ntitle: jobs end for good\n"
            "policies: {default_time: '00:05:00', directives: [--no-requeue]}\n"
        )
    program = tmp_path / "elastic.py"
    program.write_text(ELASTIC.read_text())
    words = ("--stack", "mpi", "--env-var", "HIDL_TOTAL_BATCH=8")
    options = ("--site", "test-cluster", "--nodes", "2", "--ranks-per-node", "1", "--until-done", "--json", *words)
    completed = hidl("run", *options, "--", "python", str(program), "24", "0")
    assert completed.returncode == 0, completed.stderr
    straight = json.loads(completed.stdout)
    run = start(hidl, *words, "--", "python", str(program), "24", "0.5")
    status = lose_a_node(hidl, cluster, run, at=4, lost=loss[0], dies=loss[1])
    assert status["state"] == "COMPLETED"
    assert status["nodes_of_jobs"][0] == 2
    assert set(status["nodes_of_jobs"][1:]) == {1}
    assert len(attempts(run)) == len(status["nodes_of_jobs"]) - 1
    metrics = json.loads((run / "metrics.json").read_text())["steps"][0]
    assert metrics["metrics"]["job_nodes"] == {"value": 1, "unit": "nodes", "samples": status["nodes_of_jobs"]}
    assert (metrics["ranks"], len(metrics["hosts"])) == (1, 1)
    assert "2 jobs on 2 and 1 nodes" in status["verdict"]["reason"]
    shown = hidl("status", run.name).stdout
    assert "nodes of each job" in shown
    assert "2, 1" in shown

    expected = np.load(Path(straight["directory"]) / "weights.npy")
    assert np.load(run / "weights.npy") == pytest.approx(expected, rel=TOLERANCE)
    used = [file.read_text().split() for file in sorted((run / "samples").iterdir())]
    assert {len(step) for step in used} == {8}
    for epoch in range(4):
        samples = [int(sample) for step in used[6 * epoch : 6 * epoch + 6] for sample in step]
        assert sorted(samples) == list(range(48))


def test_a_clustering_that_loses_a_node_ends_with_the_same_bits(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster
) -> None:
    hidl = on_cluster("mpi")
    assigned = [word for each in KMEANS for word in ("--set", each)]
    straight = hidl.json("run", "kmeans", "--site", "test-cluster", "--nodes", "2", "--ranks-per-node", "1", *assigned)
    run = start(hidl, "kmeans", *assigned)
    status = lose_a_node(hidl, cluster, run, at=3)
    assert status["nodes_of_jobs"] == [2, 1]
    results = [_metrics(each) for each in (run, Path(straight["directory"]))]
    names = ("result_checksum", "inertia", "iterations")
    assert [results[0][name] for name in names] == [results[1][name] for name in names]


def test_a_job_begins_on_fewer_nodes_if_no_more_are_available(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    hidl = on_cluster("mpi")
    program = tmp_path / "elastic.py"
    program.write_text(ELASTIC.read_text())
    with without_node(cluster, "node4", dies=False):
        run = start(hidl, "--stack", "mpi", "--env-var", "HIDL_TOTAL_BATCH=8", "--", "python", str(program), "3", "0.1")
        completed = hidl("resume", run.name)
    assert completed.returncode == 0, completed.stderr
    assert hidl.json("status", run.name)["nodes_of_jobs"] == [1]
    assert "begins at 0 on 1 ranks" in (run / "stdout.log").read_text()


def _metrics(run: Path) -> dict[str, Any]:
    document = json.loads((run / "steps" / "1" / "metrics.json").read_text())
    return {each["name"]: each["value"] for each in document["metrics"]}
