"""Planning and rendering for many nodes and many points: time, and how it grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Outcome
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.launch.placement import Placement, bind_to_cores
from hidl_cli.mpi import Library
from hidl_cli.plan.checks import load_workload
from hidl_cli.plan.job_script import job_script
from hidl_cli.plan.parameters import resolve
from hidl_cli.plan.planning import ResolvedOptions, make_plan
from hidl_cli.plan.prepare import stack_for
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import Installation


def measure() -> list[Outcome]:
    """Seconds for 10,000 nodes and for 1,000 points, and the growth from a tenth of each (linear: 10)."""
    _plan([1])  # imports
    nodes = {count: _best(lambda count=count: _plan([1, count])) for count in (1_000, 10_000)}
    points = {count: _best(lambda count=count: _plan(list(range(1, count + 1)))) for count in (100, 1_000)}
    return [
        Outcome("plan and render 10,000 nodes", nodes[10_000], 5, "s"),
        Outcome("growth from 1,000 to 10,000 nodes", nodes[10_000] / nodes[1_000], 12, ""),
        Outcome("plan and render 1,000 points", points[1_000], 5, "s"),
        Outcome("growth from 100 to 1,000 points", points[1_000] / points[100], 12, ""),
    ]


def _best(act: Callable[[], str]) -> float:
    times = []
    for _ in range(3):
        before = time.perf_counter()
        act()
        times.append(time.perf_counter() - before)
    return min(times)


def _plan(nodes: list[int]) -> str:
    site = Site.model_validate(
        {
            "name": "large",
            "title": "a large machine",
            "scheduler": "local",
            "launchers": ["mpiexec"],
            "node_types": {"n": {"cores": 64}},
            "partitions": {"p": {"node_type": "n", "max_nodes": 10_000}},
            "default_partition": "p",
        }
    )
    workload = load_workload("resnet50")
    parameters = resolve(workload, [])
    placements = bind_to_cores(site, [Placement.of_nodes(count, 4) for count in nodes])
    installation = Installation.at(Path("/installations/large/pytorch/0"))
    plan = make_plan(
        ResolvedOptions(
            site=site,
            workload=workload,
            parameters=parameters,
            stack=stack_for(workload, parameters),
            installation=installation,
            library=Library("pytorch", "mpich", prefix=str(installation.prefix)),
            launcher=launcher("mpiexec"),
        ),
        unit="nodes",
        placements=placements,
        repetitions=1,
        job=AllocationOptions(),
    )
    return job_script(plan)
