"""Run directories as hidl writes them, made without a job: the plan is a real one, and so is the verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hidl_cli.documents import write_json
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.launch.placement import Placement, bind_to_cores
from hidl_cli.mpi import Library
from hidl_cli.plan.launch_plan import Plan, create_run
from hidl_cli.plan.planning import ResolvedOptions, make_plan
from hidl_cli.plan.workload import Workload
from hidl_cli.record import Run
from hidl_cli.site.schema import Site
from hidl_cli.stack.installation import Installation
from hidl_cli.tuning.judge import Setting

METRICS = {
    "rate": {"unit": "items/s", "better": "higher"},
    "loss": {"unit": "1", "better": "lower", "required": False, "equal_on_all_ranks": True},
}


def plan(
    *,
    run: str | None = None,
    created: str | None = None,
    site: str = "machine",
    workload: str = "toy",
    sizes: Sequence[int] = (1,),
    repetitions: int = 1,
    tuning: Mapping[str, str] | None = None,
    lock: str = "0" * 12,
    known: Mapping[str, Mapping[str, object]] | None = None,
    **parameters: bool | int | float | str,
) -> Plan:
    """A plan of ``sizes`` ranks on one node of ``site``; ``known``: parameters of the workload's file."""
    where = Site.model_validate(
        {
            "name": site,
            "title": site,
            "scheduler": "local",
            "launchers": ["mpiexec"],
            "node_types": {"n": {"cores": 64}},
            "partitions": {"p": {"node_type": "n", "max_nodes": 64}},
            "default_partition": "p",
        }
    )
    made = make_plan(
        ResolvedOptions(
            site=where,
            workload=Workload.model_validate(
                {
                    "name": workload,
                    "title": workload,
                    "program": {"command": ["true"]},
                    "stacks": [{"stack": "mpi"}],
                    "metrics": METRICS,
                    "parameters": known or {},
                }
            ),
            parameters=parameters,
            stack="mpi",
            installation=Installation.at(Path(f"/installations/{site}/mpi/{lock}")),
            library=Library("mpi", "mpich", "4.3.0", prefix=f"/installations/{site}/mpi/{lock}"),
            launcher=launcher("mpiexec"),
            tuning=[Setting(name, value, "command line") for name, value in (tuning or {}).items()],
        ),
        unit="ranks",
        placements=bind_to_cores(where, [Placement.of_ranks(size, None) for size in sizes]),
        repetitions=repetitions,
        job=AllocationOptions(),
    )
    return replace(made, run=run or made.run, created=created or made.created, lock=lock)


def judged(
    root: Path,
    value: float | Sequence[float] = 1.0,
    *,
    verdict: str | None = "pass",
    metrics: Mapping[str, Any] | None = None,
    hosts: Sequence[str] = ("node1",),
    **of_plan: Any,
) -> Run:
    """A run that ended well and was judged: the metric ``rate`` has ``value``, in each step or in all."""
    made = plan(**of_plan)
    run = create_run(made, "#!/bin/bash\n", root=root)
    ended(run, "COMPLETED", hosts=hosts)
    values = [value] * len(made.steps) if isinstance(value, (int, float)) else list(value)
    run.write(
        "metrics",
        {
            "schema": "hidl.run-metrics/1",
            "run": run.id,
            "steps": [
                {
                    "ranks": step.placement.ranks,
                    "repetition": step.repetition,
                    "metrics": metrics or {"rate": {"value": rate, "unit": "items/s", "samples": [rate]}},
                }
                for step, rate in zip(made.steps, values, strict=True)
            ],
        },
    )
    run.write("verdict", {"schema": "hidl.verdict/1", "run": run.id, "verdict": verdict, "reason": "so it is"})
    return run


def ended(run: Run, state: str, *, hosts: Sequence[str] = ("node1",)) -> None:
    """What the job writes at its end."""
    times = {"started": 1.0, "ended": 2.0, "exit_status": 0, "step": 1, "steps": 1}
    write_json(
        run.directory / "status.json", {"schema": "hidl.status/1", "state": state, "hosts": list(hosts), **times}
    )


def of_another_version(root: Path, name: str) -> None:
    """A run directory of a hidl to come."""
    directory = root / name
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text(json.dumps({"schema": "hidl.plan/999"}), encoding="utf-8")
    (directory / "verdict.json").write_text(json.dumps({"verdict": "pass"}), encoding="utf-8")
