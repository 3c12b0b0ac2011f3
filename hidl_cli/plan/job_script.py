"""Render the job script of a launch plan."""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from hidl_cli import batch_systems
from hidl_cli.launchers import LAUNCHERS
from hidl_cli.plan.cost import ROUNDING, cost_limits, limit_at_scheduler
from hidl_cli.schedulers import IN_ALLOCATION, scheduler
from hidl_cli.schedulers.backend import SUBMIT_SECONDS, Programs, options
from hidl_cli.templates import render_script
from hidl_cli.tuning.judge import LD_PRELOAD
from hidl_cli.tuning.layers import preloads
from hidl_workloads.container import OF_THE_NODE

if TYPE_CHECKING:
    from hidl_cli.batch_systems import BatchSystem
    from hidl_cli.plan.launch_plan import Plan


def job_script(plan: Plan) -> str:
    """Render ``job.sh``, which activates the stack, runs the steps one after another and updates ``status.json``."""
    return render_script("job.sh.j2", values_of(plan))


def values_of(plan: Plan) -> dict[str, Any]:
    """Return the values for the job script's template."""
    reads_output = any(step.parser or step.patterns for step in plan.steps)
    bound = plan.steps[0].placement if plan.steps and plan.steps[0].placement.bind else None
    return {
        "run": plan.run,
        "title": f"{plan.workload.name} on {plan.site}, stack {plan.stack}",
        **scheduler_values(plan.scheduler),
        "open_mpi": plan.launcher == "mpirun",
        "hydra": plan.launcher == "mpiexec" and plan.mpi.family != "intel-mpi",
        "header": plan.header,
        "modules": () if plan.workload.program.once else plan.modules,
        "activate": None if plan.workload.program.once else plan.activate,
        "own_programs": f"{plan.prefix}/bin",
        "mpi": None if plan.mpi_of_the_stack else plan.mpi,
        "container": plan.container is not None,
        "of_the_node": OF_THE_NODE if plan.container is not None and plan.container.runtime == "pyxis" else (),
        "environment": plan.environment,
        "launcher": LAUNCHERS.get(plan.launcher) if plan.steps else None,
        "origins": {setting.name: setting.origin for setting in plan.tuning},
        "preloaded_by": _preloaded_by(plan),
        "prefix": plan.prefix,
        "steps": plan.steps,
        "on_fewer_nodes": plan.on_fewer_nodes,
        "launches": any(step.preflight or not (step.parser or step.patterns) for step in plan.steps),
        "keeps_output": any(step.parser and not step.patterns for step in plan.steps),
        "copies_output": any(step.patterns for step in plan.steps),
        "timed": any(step.timed for step in plan.steps),
        "meets": plan.workload.program.directory is not None,
        "until_settled": plan.until_settled,
        **_chain_values(plan),
        # The job runs this command after each round. It reads metrics from the output as hidl does after the run.
        "reader": (sys.executable, "-m", "hidl_cli.runs.history") if plan.until_settled and reads_output else (),
        "run_module": (f"{plan.prefix}/bin/python", plan.user_environment.starter if plan.user_environment else "-m"),
        "mpi_has_programs": plan.user_environment is None or plan.user_environment.mpi_stack is None,
        "seconds": int(plan.allocation.time_limit or 0),
        "local_limit": math.ceil(plan.allocation.time_limit or 0)
        if plan.scheduler.endswith(("local", IN_ALLOCATION))
        else 0,
        "cores_per_rank": bound.threads_per_rank if bound else None,
        "node_memory": int(plan.allocation.memory_gib * 2**30) if plan.allocation.memory_gib else None,
    }


def _chain_values(plan: Plan) -> dict[str, Any]:
    """Return the template values for a run that consists of several jobs."""
    if not plan.max_jobs:
        return {"max_jobs": 0}
    system, stop_seconds = batch_systems.system(plan.scheduler), plan.allocation.stop_seconds or 0
    return {
        "max_jobs": plan.max_jobs,
        "cost_limits": list(cost_limits(plan)),
        "nodes": plan.allocation.nodes,
        "limit_at_scheduler": limit_at_scheduler(plan),
        "rounding": ROUNDING,
        "stop_seconds": stop_seconds,
        "grace_seconds": min(15, stop_seconds // 3),
        "requeue": None,
        "next_job": None,
        "repeated": system is not None and system.is_repeated,
        **(_next_job_values(plan, system) if system else {}),
    }


def _next_job_values(plan: Plan, system: BatchSystem) -> dict[str, Any]:
    """Return the template values for a run whose job is requeued, or whose jobs depend on each other."""
    may_requeue = system.may_requeue(plan.header)
    values: dict[str, Any] = {"requeue": Markup(system.requeue) if may_requeue else None}
    following = system.next_job
    if following is None:
        return values
    backend = getattr(scheduler(plan.scheduler), "backend", None)
    programs = backend.programs if backend is not None else Programs((), re.compile(r"(?!)"))
    # If the user requests a dependency or a hold, it applies only to the first job.
    header = [line for line in plan.header if not re.match(following.held, line)]
    given = options(header, following.begin, without=("-w",)) if following.begin else []
    return values | {
        "next_job": {
            "words": Markup(following.words),
            "id": following.id,
            "cancel": Markup(following.cancel),
            "held": f"^{following.held}" if len(header) < len(plan.header) else None,
            "options": given if following.begin else None,
            "why_ended": Markup(following.why_ended),
            "seconds": math.ceil(SUBMIT_SECONDS),
            "kept": Markup(" | ".join(sorted(programs.kept))),
            "dropped": Markup(" | ".join(f"{prefix}*" for prefix in sorted(programs.dropped))),
            "added": dict(programs.added),
        }
    }


def scheduler_values(name: str) -> dict[str, Any]:
    """Return the scheduler-dependent template values, which determine how a job finds its directory and hosts."""
    batch = scheduler(name)
    return {"scheduler_functions": Markup(batch.functions), "submit_directory": batch.directory_variable}


def _preloaded_by(plan: Plan) -> list[str]:
    """Return the variables that preload the MPI library's ``libmpi.so``, whose path the job script finds."""
    launchers = {step.launch.preloaded_by for step in plan.steps} - {None}
    return sorted({*filter(None, launchers), *([LD_PRELOAD] if preloads(plan.mpi, plan.tuning) else [])})
