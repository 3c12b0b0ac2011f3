"""Check whether the jobs of a run may have different numbers of nodes: ``hidl run --until-done --nodes 2-4``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hidl_cli import batch_systems
from hidl_cli.errors import UsageError
from hidl_cli.launch.placement import Placement, check_nodes, time_limit
from hidl_cli.launchers import LauncherTraits
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.parameters import format_parameters
from hidl_cli.plan.planning import on_fewer
from hidl_cli.plan.workload import Elastic, Value, Workload
from hidl_cli.site.schema import Site

TOTAL_BATCH = "HIDL_TOTAL_BATCH"
"""Variable with the global batch of a user's program, of which each of ``$WORLD_SIZE`` processes takes its share."""


def checked_least_nodes(
    request: RunRequest,
    site: Site,
    workload: Workload,
    parameters: Mapping[str, Value],
    placement: Placement,
    *,
    launcher: LauncherTraits,
    allocation: str | None = None,
) -> int | None:
    """Return the smallest number of nodes of the jobs of a run, or None if all of them have the same number.

    Raises ``UsageError`` or ``SubmitRefused`` if the jobs cannot have different numbers of nodes.

    Args:
        request: The options.
        site: The site.
        workload: The workload, or the user's program.
        parameters: The workload's parameters.
        placement: Placement on the largest number of nodes.
        launcher: The launcher of the ranks.
        allocation: Id of the allocation in which the run takes place, if there is one.
    """
    if request.least_nodes is None:
        return None
    least, most = request.least_nodes, placement.nodes
    given, fixed = f"--nodes {least}-{most}", f"use --nodes {most}"
    if not request.until_done:
        raise UsageError(f"{given} requires --until-done", hint=f"{fixed}, or add --until-done")
    if allocation is not None:
        raise UsageError(
            f"{given} requires a new job, but hidl runs in allocation {allocation}", hint=f"{fixed}, or add --new-job"
        )
    system = batch_systems.system(site.scheduler)
    if system is None or not system.accepts_node_range:
        name = system.title if system else site.scheduler
        raise UsageError(f"{given} is not supported with {name}: its jobs have a fixed number of nodes", hint=fixed)
    if site.policies.tasks == "required":
        raise UsageError(
            f"{given} is not supported on site {site.name}: its jobs must request a number of tasks, for which "
            f"{system.title} would choose the smallest number of nodes",
            hint=fixed,
        )
    if launcher.needs_tasks:
        raise UsageError(
            f"{given} is not supported with launcher {launcher.name}, which takes the ranks per node from the job's "
            "number of tasks",
            hint=f"{fixed}, or another launcher (--launcher)",
        )
    if request.gpus is not None:
        raise UsageError(f"{given} and --gpus cannot be combined", hint="use --gpus-per-rank and --ranks-per-node")
    if workload.program.once:
        raise UsageError(f"{given} is not supported with a batch script, which starts its ranks itself", hint=fixed)
    placements = [*on_fewer(placement, least), placement]
    if request.command:
        _check_command(request.rank_variables, workload, placements, given)
    else:
        _check_workload(workload, parameters, placements, given, fixed)
    check_nodes(site, request.partition, least)
    time_limit(site, request.partition, least, request.time_limit)
    return least


def _check_command(
    variables: Mapping[str, str], workload: Workload, placements: Sequence[Placement], given: str
) -> None:
    total = variables.get(TOTAL_BATCH)
    if total is None:
        raise UsageError(
            f"{given} requires a program that keeps its global batch on any number of ranks",
            hint=f"let each rank take ${TOTAL_BATCH} / $WORLD_SIZE samples, and add --env-var {TOTAL_BATCH}=N",
        )
    if not total.isdecimal() or int(total) < 1:
        raise UsageError(f"invalid {TOTAL_BATCH} {total!r}: must be at least 1", hint="use the number of samples")
    _check_shares(int(total), workload, placements, f"{TOTAL_BATCH}={total}")


def _check_workload(
    workload: Workload, parameters: Mapping[str, Value], placements: Sequence[Placement], given: str, fixed: str
) -> None:
    elastic = workload.elastic
    if elastic is None:
        raise UsageError(
            f"{given} is not supported with workload {workload.name}: its global batch depends on the number of ranks",
            hint=fixed,
        )
    unset = [name for name in elastic.requires if not parameters[name]]
    if unset:
        raise UsageError(
            f"{given} requires {' and '.join(unset)} of workload {workload.name}: all jobs must share the samples",
            hint=f"add {' '.join(f'--set {name}=VALUE' for name in unset)}",
        )
    if differing := _differing(elastic, parameters):
        raise UsageError(
            f"{given} is not supported with {format_parameters(differing)} of workload {workload.name}", hint=fixed
        )
    if elastic.batch is not None:
        total = int(parameters[elastic.batch])
        _check_shares(total, workload, placements, f"{elastic.batch}={total}")


def _differing(elastic: Elastic, parameters: Mapping[str, Value]) -> dict[str, Value]:
    return {name: parameters[name] for name, values in elastic.when.items() if parameters[name] not in values}


def _check_shares(total: int, workload: Workload, placements: Sequence[Placement], name: str) -> None:
    """Raise ``UsageError`` unless each possible number of ranks divides the global batch."""
    for placement in placements:
        ranks = placement.ranks * (workload.program.processes or 1)
        if total % ranks:
            raise UsageError(
                f"{name} cannot be divided among the {ranks} ranks of {placement.nodes} node(s)",
                hint="use a multiple of each possible number of ranks",
            )
