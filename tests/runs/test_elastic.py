"""Runs whose jobs have different numbers of nodes: ``hidl run --until-done --nodes 1-2``."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hidl_cli.plan.launch_plan import plan_of
from hidl_cli.plan.options import RunOptions, RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.record import Run
from hidl_cli.runs.metrics import read_steps
from tests.cluster.cluster import LivingCluster
from tests.conftest import REPOSITORY, SHELLCHECK, Hidl
from tests.runs.test_until_done import attempts
from tests.tiers import deep
from tests.waiting import until

ELASTIC = REPOSITORY / "tests" / "programs" / "elastic.py"
ON_EXPANSE = ("--site", "expanse", "-p", "compute", "--account", "abc", "--time", "60", "--dry-run", "--no-check")
DATA = ("--set", "data=/data")
OWN_BATCH = ("--until-done", "--nodes", "1-2", "--env-var", "HIDL_TOTAL_BATCH=8", "--")
#: 30 iterations of kmeans, with a checkpoint after each.
KMEANS = ("points=60000", "columns=3", "clusters=20", "max_iterations=15", "steps=2", "warmup=1", "spread=8")
#: A small transformer, with a checkpoint after each step.
GPT = (
    "total_batch=8", "steps=11", "warmup=1", "layers=2", "width=32", "heads=4", "context=16", "vocabulary=50", "seed=3"
)  # fmt: skip
#: Relative difference of weights: the sums over ranks have another order.
TOLERANCE = 1e-12
#: Relative difference of the loss of gpt, whose weights are in single precision.
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
        ([*OWN_BATCH, "torchrun", "--nnodes", "2", "a.py"], "torchrun --nnodes is 2 in each job, but jobs have 1 to 2"),
        ([*OWN_BATCH, "bash", "-c", "torchrun --nnodes=1:2 a.py"], "torchrun --nnodes is 1:2 in each job"),
    ],
)
def test_runs_that_need_a_fixed_number_of_nodes_are_refused(hidl: Hidl, words: list[str], why: str) -> None:
    program = words.index("--") if "--" in words else len(words)
    completed = hidl("run", *words[:program], *ON_EXPANSE, *words[program:])
    assert completed.returncode == 2, completed.stdout
    assert why in completed.stderr


@pytest.mark.parametrize(("site", "system"), [("summit", "LSF"), ("polaris", "PBS")])
def test_schedulers_without_ranges_are_refused(hidl: Hidl, site: str, system: str) -> None:
    words = ("kmeans", "--site", site, "--until-done", "--nodes", "1-2", "--device", "cpu", "--dry-run", "--no-check")
    refused = hidl("run", *words)
    assert refused.returncode == 2
    assert f"--nodes 1-2 is not supported with {system}: its jobs have a fixed number of nodes" in refused.stderr


@pytest.mark.parametrize("count", ["--nnodes={nodes}", "--nnodes=$SLURM_NNODES"])
def test_torchrun_may_have_the_number_of_nodes_of_each_job(hidl: Hidl, count: str) -> None:
    program = OWN_BATCH.index("--")
    words = ("--no-mpi", *OWN_BATCH[:program], *ON_EXPANSE, "--", "bash", "-c", f"torchrun {count} a.py")
    assert hidl("run", *words).returncode == 0


@pytest.mark.parametrize(
    ("site", "options"), [("frontera", ("-p", "small", "--launcher", "mpirun_rsh")), ("vista", ())]
)
def test_sites_that_require_tasks_are_refused_by_name(hidl: Hidl, site: str, options: tuple[str, ...]) -> None:
    words = ("kmeans", "--site", site, "--until-done", "--nodes", "1-2", "--device", "cpu", "--dry-run", "--no-check")
    refused = hidl("run", *words, *options, "--account", "abc")
    assert refused.returncode == 2
    assert f"--nodes 1-2 is not supported on site {site}: its jobs must request a number of tasks" in refused.stderr


def site_file(hidl: Hidl, name: str, text: str) -> None:
    file = hidl.config / "sites" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"name: {name}\n{text}")


def site_without_requeue(hidl: Hidl) -> None:
    policies = "policies: {default_time: '00:05:00', directives: [--no-requeue]}\n"
    site_file(hidl, "test-cluster", f"extends: test-cluster\ntitle: jobs end for good\n{policies}")


def test_ibrun_is_refused_on_any_site(hidl: Hidl) -> None:
    site_file(hidl, "own", "extends: frontera\ntitle: without tasks\npolicies: {tasks: none}\n")
    words = ("--site", "own", "-p", "small", "--account", "abc", "--dry-run", "--no-check", "--launcher", "ibrun")
    refused = hidl("run", "kmeans", *words, "--until-done", "--nodes", "1-2")
    assert refused.returncode == 2
    assert "--nodes 1-2 is not supported with launcher ibrun, which takes the ranks per node" in refused.stderr


@pytest.mark.parametrize(("node", "per_core"), [("{memory_gib: 64}", 1), ("{cores: 4, threads_per_core: 2}", 2)])
def test_unbound_ranks_have_a_cpu_each(hidl: Hidl, node: str, per_core: int) -> None:
    """Also on nodes with fewer cores than ranks, whose hardware threads Slurm counts."""
    text = "title: shared nodes\nscheduler: slurm\nlaunchers: [srun]\npolicies: {memory: mem-per-cpu}\n"
    nodes = f"node_types:\n  node: {node}\npartitions:\n  batch: {{node_type: node}}\ndefault_partition: batch\n"
    site_file(hidl, "shared", text + nodes)
    words = ("kmeans", "--site", "shared", "--until-done", "--ranks-per-node", "8", "--dry-run", "--no-check")
    fixed = hidl("run", *words, "--nodes", "4").stdout
    assert "#SBATCH --ntasks-per-node=8\n" in fixed
    elastic = hidl("run", *words, "--nodes", "2-4").stdout
    assert "#SBATCH --nodes=2-4\n#SBATCH --cpus-per-task=8\n" in elastic
    assert "--threads-per-core" not in elastic
    if per_core == 1:
        assert "#SBATCH --mem-per-cpu=8192M\n" in fixed
        assert "#SBATCH --mem-per-cpu=8192M\n" in elastic


def test_a_plan_keeps_the_steps_of_all_numbers_of_nodes() -> None:
    """``hidl resume`` reads the plan during a job on 1 node and judges a job on 2."""
    options = RunOptions(workload="kmeans", site="expanse", nodes="1-3", until_done=True, account="abc")
    plan = prepare(RunRequest.of(options, hypothetical=True))
    for nodes in (1, 3, 2, 2, 3, 1, 7):
        plan = plan.on_nodes(nodes)
        (step,) = plan.steps
        assert step.placement.nodes == (1 if nodes == 7 else nodes)
        assert {each.placement.nodes for each in (*plan.steps, *plan.on_fewer_nodes)} == {1, 2, 3}


def test_a_batch_script_and_an_allocation_are_refused(hidl: Hidl, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --time=10\nsrun hostname\n")
    words = ("run", "--until-done", "--nodes", "1-2", *ON_EXPANSE)
    refused = hidl(*words, str(tmp_path / "job.sh"))
    assert refused.returncode == 2
    assert "--nodes 1-2 is not supported with a batch script" in refused.stderr


def test_the_limits_of_the_smallest_number_of_nodes_hold(hidl: Hidl) -> None:
    words = ("--site", "juwels-booster", "-p", "largebooster", "--account", "abc", "--dry-run", "--no-check")
    refused = hidl("run", "kmeans", *words, "--device", "cpu", "--until-done", "--nodes", "384-386")
    assert refused.returncode == 6
    assert "384 nodes requested; partition largebooster of site juwels-booster allows 385 to 936" in refused.stderr


def test_the_upper_bound_counts_for_limits_and_estimates(hidl: Hidl) -> None:
    words = ("run", "kmeans", *ON_EXPANSE, "--until-done", "--nodes", "1-2")
    refused = hidl(*words, "--max-node-hours", "1.5")
    assert refused.returncode == 2
    assert "a single job may use 2 node-hours" in refused.stderr
    estimate = hidl(*[word for word in words if word != "--dry-run"], "--max-jobs", "3", "--estimate")
    assert "at most 3 jobs on 1 to 2 node(s) for at most 01:00:00 each = at most 6 node-hours" in estimate.stdout


@pytest.mark.parametrize("words", [("kmeans",), ("--env-var", "HIDL_TOTAL_BATCH=8", "--", "python", "train.py")])
def test_the_script_has_a_launch_for_each_number_of_nodes(hidl: Hidl, words: tuple[str, ...]) -> None:
    options = (*ON_EXPANSE, "--until-done", "--nodes", "1-2", "--ranks-per-node", "2")
    script = hidl("run", *(words[:1] if len(words) == 1 else words[:2]), *options, *words[2:]).stdout
    assert "#SBATCH --nodes=1-2\n" in script
    chosen = script[script.index("case $(wc -l < hosts) in") :]
    assert chosen.index(" --ntasks=2 ") < chosen.index(" --ntasks=4 ")
    assert "export HIDL_MOST_RANKS=4\n" in script
    checked = subprocess.run([SHELLCHECK, "-"], input=script, capture_output=True, text=True, check=False)
    assert checked.stdout == ""
    fixed = hidl("run", *(words[:1] if len(words) == 1 else words[:2]), *ON_EXPANSE, "--until-done", *words[2:]).stdout
    assert "wc -l < hosts" not in fixed.partition("tell_program")[0]
    assert "#SBATCH --nodes=1\n" in fixed


def start(hidl: Hidl, *words: str) -> Path:
    program = words.index("--") if "--" in words else len(words)
    options = ("--site", "test-cluster", "--until-done", "--nodes", "1-2", "--ranks-per-node", "1")
    others = ("--scheduler-option=--exclude=node1,node2", "--env-var", "HIDL_CHECKPOINT_INTERVAL=0")
    completed = hidl("run", *words[:program], *options, *others, "--no-wait", "--json", *words[program:])
    assert completed.returncode == 0, completed.stderr
    return Path(json.loads(completed.stdout)["directory"])


def finish(hidl: Hidl, *words: str) -> Path:
    """Run a program of ours until it has ended, and return the run's directory."""
    completed = hidl("run", "--json", *words)
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
        site_without_requeue(hidl)
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
    """Its times are those of whole fits on the last number of nodes, of which there is one after a loss in the second
    fit: the third, or another one if that was interrupted."""
    hidl = on_cluster("mpi")
    assigned = [word for each in KMEANS for word in ("--set", each)]
    straight = hidl.json("run", "kmeans", "--site", "test-cluster", "--nodes", "2", "--ranks-per-node", "1", *assigned)
    expected = _metrics(Path(straight["directory"]))
    run = start(hidl, "kmeans", *assigned)
    status = lose_a_node(hidl, cluster, run, at=int(expected["iterations"]["value"]) + 2)
    assert status["nodes_of_jobs"] == [2, 1]
    found = _metrics(run)
    for name in ("result_checksum", "inertia", "iterations"):
        assert found[name]["value"] == expected[name]["value"]
    assert [len(each["fit_time"]["samples"]) for each in (found, expected)] == [1, 2]


def test_a_transformer_that_loses_a_node_has_the_same_loss(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    hidl = on_cluster("pytorch")
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "tokens.npy", np.random.default_rng(5).integers(50, size=5000).astype(np.uint16))
    assigned = [word for each in (*GPT, f"data={tmp_path / 'data'}") for word in ("--set", each)]
    words = ("--site", "test-cluster", "--nodes", "2", "--ranks-per-node", "1")
    straight = hidl.json("run", "gpt", *words, *assigned)
    run = start(hidl, "gpt", *assigned)
    status = lose_a_node(hidl, cluster, run, at=4)
    assert status["nodes_of_jobs"] == [2, 1]
    found, expected = _metrics(run), _metrics(Path(straight["directory"]))
    assert found["loss"]["value"] == pytest.approx(expected["loss"]["value"], rel=GPT_TOLERANCE)
    rate, seconds = found["tokens_per_second"]["value"], found["step_time"]["value"]
    assert rate * seconds == pytest.approx(8 * 16)


def test_a_run_that_gets_more_nodes_is_judged_on_them(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path
) -> None:
    hidl = on_cluster("mpi")
    program = tmp_path / "elastic.py"
    program.write_text(ELASTIC.read_text())
    words = ("--stack", "mpi", "--env-var", "HIDL_TOTAL_BATCH=8", "--", "python", str(program), "20", "0.3")
    with without_node(cluster, "node4", dies=False):
        run = start(hidl, *words)
        until(lambda: saved_steps(run) >= 2, otherwise=(run / "stderr.log").read_text)
        plan = plan_of(Run(run))  # as `hidl resume` reads it now
    assert plan.steps[0].placement.nodes == 1
    job = json.loads((run / "job.json").read_text())["id"]
    cluster("scontrol", "requeue", job)
    until(lambda: hidl.json("status", run.name)["state"] == "PENDING")
    cluster("scontrol", "update", f"JobId={job}", "StartTime=now")
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, completed.stderr
    assert hidl.json("status", run.name)["nodes_of_jobs"] == [1, 2]
    (step,) = read_steps(Run(run), plan.on_nodes(2))
    assert (step["ranks"], len(step["hosts"])) == (2, 2)


@pytest.mark.parametrize("mode", ["requeue", "dependency"])
def test_a_program_that_fails_on_fewer_nodes_gets_more(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, tmp_path: Path, mode: str
) -> None:
    """It may have too little memory there. Two such jobs would end a run otherwise."""
    hidl = on_cluster("mpi")
    if mode == "dependency":
        site_without_requeue(hidl)
    program = tmp_path / "elastic.py"
    fails = "if world.size == 1:\n    sys.exit(9)\nsteps, seconds = "
    program.write_text(ELASTIC.read_text().replace("steps, seconds = ", fails))
    words = ("--stack", "mpi", "--env-var", "HIDL_TOTAL_BATCH=8", "--", "python", str(program), "3", "0.1")
    with without_node(cluster, "node4", dies=False):
        run = start(hidl, *words)
        errors = run / "stderr.log"
        until(
            lambda: errors.exists() and "nothing new on 1 node(s): the next ones have at least 2" in errors.read_text()
        )
        until(lambda: (run / "next").exists() and hidl.json("status", run.name)["state"] == "PENDING")
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, (completed.stderr, errors.read_text())
    assert hidl.json("status", run.name)["nodes_of_jobs"] == [1, 2]
    assert "begins at 0 on 2 ranks" in (run / "stdout.log").read_text()


def test_a_run_whose_status_is_unreadable_can_be_listed_and_cancelled(
    on_cluster: Callable[..., Hidl], tmp_path: Path
) -> None:
    hidl = on_cluster("mpi")
    program = tmp_path / "elastic.py"
    program.write_text(ELASTIC.read_text())
    run = start(hidl, "--stack", "mpi", "--env-var", "HIDL_TOTAL_BATCH=8", "--", "python", str(program), "2000", "0.3")
    until(lambda: saved_steps(run) >= 1, otherwise=(run / "stderr.log").read_text)
    (run / "status.json").write_text("")  # the node has failed
    assert [each["run"] for each in hidl.json("status")["runs"]] == [run.name]
    assert hidl.json("status", run.name)["state"] == "RUNNING"
    refused = hidl("uninstall", "mpi", "--site", "test-cluster", "--yes")
    assert refused.returncode == 4
    assert f"run {run.name} may not have ended: its status cannot be read" in refused.stderr
    assert hidl("cancel", run.name).returncode == 0
    assert hidl.json("status", run.name)["state"] == "CANCELLED"


def test_unbound_ranks_get_their_cpus(on_cluster: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = on_cluster("mpi")
    program = tmp_path / "elastic.py"
    told = "print('cpus', os.environ['SLURM_JOB_CPUS_PER_NODE'])\n"
    program.write_text(ELASTIC.read_text().replace("steps, seconds = ", f"{told}steps, seconds = "))
    words = ("--site", "test-cluster", "--until-done", "--ranks-per-node", "2", "--threads", "64", "--stack", "mpi")
    own = ("--env-var", "HIDL_TOTAL_BATCH=8", "--", "python", str(program), "2", "0")
    fixed, elastic = (finish(hidl, *words, "--nodes", nodes, *own) for nodes in ("2", "1-2"))
    cpus = [re.findall(r"cpus (\S+)", (each / "stdout.log").read_text()) for each in (fixed, elastic)]
    assert cpus == [["2(x2)"] * 4] * 2


def test_ranks_may_alternate_between_nodes(on_cluster: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = on_cluster("mpi")
    policies = "policies: {default_time: '00:05:00', environment: {SLURM_DISTRIBUTION: cyclic}}\n"
    site_file(hidl, "test-cluster", f"extends: test-cluster\ntitle: cyclic\n{policies}")
    program = tmp_path / "elastic.py"
    program.write_text(ELASTIC.read_text())
    words = ("--site", "test-cluster", "--until-done", "--ranks-per-node", "2", "--launcher", "srun", "--stack", "mpi")
    own = ("--env-var", "HIDL_TOTAL_BATCH=8", "--", "python", str(program), "6", "0")
    runs = [finish(hidl, *words, "--nodes", nodes, *own) for nodes in ("1", "1-2")]
    assert np.load(runs[1] / "weights.npy") == pytest.approx(np.load(runs[0] / "weights.npy"), rel=TOLERANCE)
    document = json.loads((runs[1] / "metrics.json").read_text())["steps"][0]
    assert document["ranks"] == 4


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
    return {each["name"]: each for each in document["metrics"]}
