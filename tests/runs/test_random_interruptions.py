"""Chains of jobs on a real Slurm, interrupted at random moments, end with the results of an uninterrupted run."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import LivingCluster
from tests.conftest import Hidl
from tests.runs.test_until_done import attempts
from tests.tiers import deep
from tests.waiting import until

pytestmark = pytest.mark.exact

#: 45 iterations, with a checkpoint after each.
KMEANS = ("points=6000", "columns=3", "clusters=20", "max_iterations=15", "steps=2", "warmup=1")
SPREAD = 8
INTERRUPTIONS = 3
SEEDS = range(20)
MODES = ("requeue", "dependency")


def metrics_of(run: Path) -> dict[str, Any]:
    document = json.loads((run / "steps" / "1" / "metrics.json").read_text())
    return {each["name"]: each["value"] for each in document["metrics"]}


def results(run: Path) -> list[Any]:
    found = metrics_of(run)
    return [found[name] for name in ("result_checksum", "inertia", "iterations", "smallest_cluster")]


def steps(run: Path) -> int:
    """Return the number of iterations in the newest checkpoint."""
    names = (path.name for path in (run / "checkpoint").glob("step-*"))
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def kill_a_rank(run: Path, chance: random.Random, *, while_saving: bool) -> None:
    """Kill a rank of the run, if one is alive; ``while_saving``: while files of an unfinished checkpoint exist."""
    if while_saving:
        until(lambda: any((run / "checkpoint").glob(".step-*")) or is_over(run))
    mark = f"HIDL_RUN_ID={run.name}".encode()
    ranks = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            is_rank = b"PMI_RANK=" in (process / "environ").read_bytes() and b"hidl_workloads.ml.kmeans" in words
            if is_rank and mark in (process / "environ").read_bytes():
                ranks.append(int(process.name))
        except OSError:
            continue
    if ranks:
        os.kill(chance.choice(sorted(ranks)), signal.SIGKILL)


def has_reached(run: Path, number: int) -> bool:
    return steps(run) >= number or is_over(run)


def has_ended(run: Path, number: int) -> bool:
    """Return whether the job ``number`` of the run has ended."""
    return is_over(run) or ((run / "attempts.jsonl").exists() and len(attempts(run)) >= number)


def is_pending(hidl: Hidl, run: Path) -> bool:
    return hidl.json("status", run.name)["state"] in ("PENDING", "COMPLETED")


def job_of(run: Path) -> str:
    return str(json.loads((run / "status.json").read_text())["job"])


def is_over(run: Path) -> bool:
    """Return whether the last job has ended; before the first one begins, there is no status."""
    status = run / "status.json"
    return status.exists() and json.loads(status.read_text())["state"] != "RUNNING"


def interrupt(run: Path, cluster: LivingCluster, chance: random.Random, mode: str) -> str:
    """Interrupt the running job in one of several ways; return which. Slurm requeues no job whose script is killed."""
    ways = ["signal", "rank", "rank while saving", "controller"]
    how = chance.choice(ways if mode == "requeue" else [*ways, "script"])
    if how == "signal":
        cluster("scancel", "--batch", "--signal=USR1", job_of(run))
    elif how == "script":
        cluster("scancel", "--batch", "--signal=KILL", job_of(run))
    elif how == "controller":
        cluster.wait_until_saved()
        cluster.kill("slurmctld")
        kill_a_rank(run, chance, while_saving=False)
        cluster.start("slurmctld")
    else:
        kill_a_rank(run, chance, while_saving=how == "rank while saving")
    return how


@pytest.mark.parametrize(
    ("mode", "seed"),
    [(mode, 0) for mode in MODES] + [deep(mode, seed) for mode in MODES for seed in SEEDS[1:]],
)
def test_a_clustering_ends_with_the_same_bits(
    on_cluster: Callable[..., Hidl], cluster: LivingCluster, mode: str, seed: int
) -> None:
    hidl = on_cluster("mpi")
    if mode == "dependency":
        site = hidl.config / "sites" / "test-cluster.yaml"
        site.parent.mkdir(parents=True)
        site.write_text(
            "name: test-cluster\nextends: test-cluster\ntitle: jobs end for good\n"
            "policies: {default_time: '00:05:00', directives: [--no-requeue]}\n"
        )
    chance = random.Random(seed)
    assigned = [word for each in (*KMEANS, f"spread={SPREAD}", f"seed={seed}") for word in ("--set", each)]
    words = ("kmeans", "--site", "test-cluster", "--nodes", "1", "--ranks-per-node", "2", *assigned)
    straight = hidl.json("run", *words)
    chain = ("--until-done", "--env-var", "HIDL_CHECKPOINT_INTERVAL=0", "--no-wait")
    run = Path(hidl.json("run", *words, *chain)["directory"])
    told: list[str] = []
    reached = 0
    for number in range(1, INTERRUPTIONS + 1):
        reached += chance.randint(1, 8)
        until(partial(has_reached, run, reached), otherwise=(run / "stderr.log").read_text)
        if is_over(run):
            break
        told.append(interrupt(run, cluster, chance, mode))
        until(partial(has_ended, run, number), otherwise=lambda: (told, (run / "stderr.log").read_text()))
        if mode == "requeue" and not is_over(run):
            until(partial(is_pending, hidl, run))
            cluster("scontrol", "update", f"JobId={job_of(run)}", "StartTime=now")  # or it would wait two minutes
        reached = max(reached, steps(run))
    completed = hidl("resume", run.name)
    assert completed.returncode == 0, (told, completed.stderr, (run / "stderr.log").read_text())
    assert results(run) == results(Path(straight["directory"])), told
    assert steps(run) == 45
