"""The job script of a launch plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hidl_cli.templates import render_script
from hidl_cli.tuning.preload import preloads

if TYPE_CHECKING:
    from hidl_cli.runs.plan import Plan


def job_script(plan: Plan) -> str:
    """Render ``job.sh``: it activates the stack, runs the steps one after another and keeps ``status.json``."""
    return render_script("job.sh.j2", values_of(plan))


def values_of(plan: Plan) -> dict[str, Any]:
    """What the template of a job script says in the words of ``plan``."""
    bound = plan.steps[0].placement if plan.steps and plan.steps[0].placement.bind else None
    return {
        "run": plan.run,
        "title": f"{plan.workload.name} on {plan.site}, stack {plan.stack}",
        "scheduler": plan.scheduler,
        "as_root": plan.launcher == "mpirun",
        "header": plan.header,
        "modules": plan.modules,
        "activate": plan.activate,
        "mpi": None if plan.mpi_of_the_stack else plan.mpi,
        "environment": plan.environment,
        "origins": {setting.name: setting.origin for setting in plan.tuning},
        "preload": preloads(plan.mpi, plan.tuning),
        "steps": plan.steps,
        "keeps_output": any(step.parser for step in plan.steps),
        "until_settled": plan.until_settled,
        "python": f"{plan.prefix}/bin/python",
        "seconds": int(plan.allocation.time_limit or 0),
        "cores_per_rank": bound.threads_per_rank if bound else None,
        "node_memory": int(plan.allocation.memory_gib * 2**30) if plan.allocation.memory_gib else None,
    }
