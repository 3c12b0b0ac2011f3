"""Resolve the options of ``hidl run`` into a launch plan."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os import fspath
from pathlib import Path

from hidl_cli import batch_systems
from hidl_cli.batch_systems import SCHEDULERS
from hidl_cli.errors import HidlError, InvalidInput, MissingPrecondition, Problem, SubmitRefused, UsageError
from hidl_cli.launch.container import container_for
from hidl_cli.launch.hosts import Hosts, on_hosts
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.library import OF_THE_STACK, launcher_for, library_for, site_tuning
from hidl_cli.launch.options import JobOptions, command_line_options
from hidl_cli.launch.placement import Placement, bind_to_cores, gpu_share, requested_gpus
from hidl_cli.mpi import WHEEL_NETMODS, Abi, Library
from hidl_cli.plan.checks import load_workload
from hidl_cli.plan.cost import limit_cost
from hidl_cli.plan.devices import DeviceUse, NoGpuStack, NoGpuUse, choose_device, require_stack
from hidl_cli.plan.elastic import checked_least_nodes
from hidl_cli.plan.input_files import PIPED, require_readable
from hidl_cli.plan.launch_plan import Plan, plan_of
from hidl_cli.plan.options import RunRequest, absolute
from hidl_cli.plan.parameters import expand_matrix, format_parameters, gpu_defaults, resolve
from hidl_cli.plan.planning import ResolvedOptions, can_be_copied, make_plan
from hidl_cli.plan.program import own_workload, with_metrics
from hidl_cli.plan.workload import Value, Workload, holds, ranks_kept
from hidl_cli.quoting import sh
from hidl_cli.record import State, find
from hidl_cli.redaction import remember
from hidl_cli.schedulers import scheduler, scheduler_for
from hidl_cli.schedulers.backend import Backend, EnclosingJob, enclosing_job, read_reference
from hidl_cli.site.job_options import require_supported
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_cli.stack import activation as environments
from hidl_cli.stack import installation
from hidl_cli.stack.activation import EnvironmentInstallation
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.schema import Stack
from hidl_cli.tuning.catalogue import main_name
from hidl_cli.tuning.judge import (
    COMPARED,
    DEFAULT,
    MATRIX,
    Layer,
    Setting,
    ValidSetting,
    compared_variables,
    judge,
    without_variables,
)
from hidl_cli.tuning.layers import merge_layers
from hidl_workloads.container import NEVER_PASSED

#: The option that sets the MPI library's run-time variables, recorded as the origin of their values.
_TUNE = "--tune"

#: Options that apply only to a new job, by field name. They cannot change an existing allocation.
_OF_NEW_JOBS = {
    field: each.names[0]
    for field, each in command_line_options(JobOptions).items()
    if each.panel == "Job" and field not in ("site", "partition", "time")
} | {"memory": "--mem", "exclusive": "--exclusive", "share": "--share"}

#: For each MPI ABI, the stack whose MPI library is used for environments that have none.
_STACKS: Mapping[Abi, str] = {"mpich": "mpi", "openmpi": "openmpi"}


def prepare(
    request: RunRequest, site: Site | None = None, workload: Workload | None = None, stack: Stack | None = None
) -> Plan:
    """Resolve the options of a run into a plan, without side effects.

    Args:
        request: The options.
        site: The site, if already loaded.
        workload: The workload, if already loaded.
        stack: The stack, if already loaded.

    Raises:
        UsageError, InvalidInput: An option is invalid.
        SubmitRefused: The site requires an option that is missing.
        MissingPrecondition: The stack is not installed, or does not support the device.
    """
    variables = request.rank_variables
    remember(list(request.words), [*request.assignments, *request.axes, *request.variables], variables)
    site = on_hosts(site or load_site(request.site), request.named_hosts)
    try:
        return _prepare(request, site, workload, stack)
    except (NoGpuUse, NoGpuStack):
        if not request.any_device or request.device is not None:
            raise
    here = request.partition or site.default_partition
    return _prepare(replace(request, device="cpu", partition=here), site, workload, stack)


def _prepare(request: RunRequest, site: Site, workload: Workload | None, stack: Stack | None) -> Plan:
    if (hosts := request.named_hosts) is not None:
        request = _on_all_hosts(request, hosts)
    if (stdin := request.stdin_file) not in (None, PIPED) and not request.hypothetical:
        require_readable(Path(stdin))
    scheduler_for(site)  # report an unsupported scheduler before anything else
    given, script = request, None
    if request.command:
        from hidl_cli.plan.batch_script import with_script

        request, script = with_script(request, site)
    request, enclosing = _in_allocation(request, site, given)
    environment = _environment(request, site)
    workload = with_metrics(
        workload or _workload(request, environment, once=script is not None),
        request.metric_words,
        judged=request.scale is not None or bool(request.axes),
        scaling=request.scaling,
    )
    _check_container(request, is_script=script is not None)
    if script is not None:
        _require_own_ranks(workload)
    if request.scale and workload.scaling is None:
        raise UsageError(
            f"workload {workload.name} has no `scaling`", hint="omit --scale, or add `scaling` to the workload"
        )
    if request.scale and request.axes:
        raise UsageError("--scale and --matrix cannot be combined", hint="compare at one size, then scale the best one")
    parameters, matrix = resolve(workload, request.assignments), expand_matrix(workload, request.axes)
    remember(dict(parameters), [dict(point) for point in matrix])
    points = [{**parameters, **point} for point in matrix]
    use = choose_device(site, workload, points, request, request.device)
    request = replace(request, partition=use.partition, gpus_per_node=use.gpus_per_node)
    request = _with_gpus(replace(request, after=_jobs_before(request, site)), site)
    if use.device == "gpu":
        named = {word.partition("=")[0] for word in (*request.assignments, *request.axes)}
        chosen = gpu_defaults(workload, site.node_type(use.partition), named)
        parameters |= chosen
        if chosen:
            notice = f"defaults on these GPUs: {format_parameters(chosen)} (--set changes them)"
            use = replace(use, notices=(*use.notices, notice))
    left_out = [] if script is None else [f"not carried over: {each}" for each in script.left_out]
    if script is not None and enclosing is not None:
        left_out = ["the script's requests do not change the allocation"]
    use = replace(use, notices=(*use.notices, *left_out))
    request, workload = _once_per_node(request, site, workload)
    least = workload.needed_ranks
    unit, placements = _placements(request, site, least, cores=_cores_of(enclosing, site, request))
    _require_room(enclosing, placements, site, request)
    compares = any(map(compared_variables, matrix))
    _check_sizes(request, workload, unit, placements, compares=compares)
    if use.device == "gpu" and not workload.program.processes:
        use = replace(use, notices=(*use.notices, *_idle_gpus(request, site, placements)))
    options = _resolve_options(
        request, site, workload, environment, parameters=parameters, matrix=matrix, use=use, stack=stack
    )
    options = replace(options, script=script, enclosing=enclosing)
    plan = make_plan(
        options,
        unit=unit,
        placements=placements,
        repetitions=request.repeat or (5 if request.scale or request.axes else 1),
        job=request,
        target=request.target or (workload.scaling.target if workload.scaling else None),
        baseline=request.baseline,
        until_settled=request.until_settled and (request.scale is not None or compares),
        precision=request.required_precision,
        variables=request.rank_variables,
        max_jobs=_job_limit(request, site, workload),
        least_nodes=checked_least_nodes(
            request,
            site,
            workload,
            parameters,
            placements[0],
            launcher=options.launcher,
            allocation=enclosing.id if enclosing else None,
        ),
    )
    plan = limit_cost(plan, request.max_node_hours, request.max_cost)
    if plan.missing and not request.hypothetical:
        raise SubmitRefused(
            f"site {site.name} requires {' and '.join(plan.missing)}", hint=f"add {plan.missing[0]} NAME"
        )
    return plan


def _require_own_ranks(workload: Workload) -> None:
    """Raise ``UsageError`` if an option applies to ranks that hidl starts; a batch script starts its own."""
    if ranks_kept(workload.program.patterns) is not None:
        raise UsageError(
            "--metric cannot select ranks of a batch script, which starts its ranks itself",
            hint="omit ranks from --metric",
        )


def _in_allocation(request: RunRequest, site: Site, given: RunRequest) -> tuple[RunRequest, EnclosingJob | None]:
    """Return the request and the job in which hidl runs. The job is None if the run does not use this job.

    The request gets the partition of that job. Raises ``UsageError`` if an option in ``given``, the user's original
    request, applies only to a new job.
    """
    if not request.in_allocation or request.named_hosts is not None:
        return request, None
    job = enclosing_job(site.scheduler, os.environ)
    if job is None or not _is_running(job, site.scheduler or ""):
        return request, None
    if name := next((name for field, name in _OF_NEW_JOBS.items() if getattr(given, field)), None):
        raise UsageError(
            f"{name} applies only to new jobs, but hidl is running in allocation {job.id} and uses it",
            hint=f"use --new-job to submit another job, or omit {name}",
        )
    if request.partition is not None:
        return request, job
    names = {partition.queue or name: name for name, partition in site.partitions.items()}
    return replace(request, partition=names.get(job.queue or "")), job


def _is_running(job: EnclosingJob, name: str) -> bool:
    """Return whether the scheduler still reports the job as running; a shell may outlive the job that started it."""
    backend = SCHEDULERS.get(name)
    if not isinstance(backend, Backend):
        return False
    with suppress(HidlError):
        found = backend.look_up(job.id, None)
        return found is not None and found.state is State.RUNNING
    return False


def _cores_of(job: EnclosingJob | None, site: Site, request: RunRequest) -> int | None:
    """Return the number of cores per node of the job in which hidl runs, or None if unknown or outside of a job."""
    if job is None or job.cpus is None:
        return None
    return max(1, job.cpus // (site.node_type(request.partition).threads_per_core or 1))


def _require_room(job: EnclosingJob | None, placements: Sequence[Placement], site: Site, request: RunRequest) -> None:
    """Raise ``SubmitRefused`` if a step requires more resources than the job in which hidl runs."""
    if job is None:
        return
    nodes = max(placement.nodes for placement in placements)
    cores = _cores_of(job, site, request)
    needed = max(placement.ranks_per_node * placement.threads_per_rank for placement in placements)
    if job.nodes is not None and nodes > job.nodes:
        raise SubmitRefused(
            f"{nodes} nodes requested, but allocation {job.id}, in which hidl runs, has {job.nodes}",
            hint=f"use --nodes {job.nodes}, or --new-job to submit another job",
        )
    if cores is not None and needed > cores:
        raise SubmitRefused(
            f"{needed} cores per node requested, but allocation {job.id}, in which hidl runs, has {cores}",
            hint="reduce --ranks-per-node or --threads, or use --new-job to submit another job",
        )


def _once_per_node(request: RunRequest, site: Site, workload: Workload) -> tuple[RunRequest, Workload]:
    """Request one rank per node, with all its cores and GPUs, for a program that launches its own processes."""
    if not request.command or workload.program.once:
        return request, workload
    from hidl_cli.plan.program_launcher import find_launcher, processes_per_node

    launcher = find_launcher(request.words, Path(request.directory or Path.cwd()))
    if launcher is None:
        return request, workload
    if request.sizes is not None and parse_scale(request.sizes, default_unit=_unit(site))[0] == "ranks":
        raise UsageError(
            f"{launcher.name} starts its processes itself, so a study varies the number of nodes",
            hint="use --scale nodes=1,2,4",
        )
    gpus = requested_gpus(site, request)
    processes = processes_per_node(
        launcher, request, nodes=request.nodes or 1, gpus=gpus, least_nodes=request.least_nodes
    )
    threads = None if request.threads is None else request.threads * processes
    program = workload.program.model_copy(update={"processes": processes, "mpi": False})
    return replace(request, ranks_per_node=1, threads=threads), workload.model_copy(update={"program": program})


def _job_limit(request: RunRequest, site: Site, workload: Workload) -> int:
    """Return ``Plan.max_jobs``; raises ``UsageError`` if this run cannot be divided among several jobs."""
    limit = request.job_limit
    if not limit:
        return 0
    if request.scale or request.axes or (request.repeat or 1) > 1:
        raise UsageError(
            "--until-done cannot be combined with --scale, --matrix or --repeat",
            hint="run one size with one set of parameters",
        )
    if not workload.continues:
        raise UsageError(
            f"workload {workload.name} cannot continue in another job: it has no checkpoints", hint="omit --until-done"
        )
    system = batch_systems.system(site.scheduler)
    if site.scheduler != "local" and (system is None or not (system.requeue or system.next_job or system.is_repeated)):
        raise UsageError(
            f"--until-done is not supported with {system.title if system else site.scheduler}",
            hint="use a site with another scheduler, or the local machine",
        )
    return limit


def _with_gpus(request: RunRequest, site: Site) -> RunRequest:
    """Set the GPUs per node implied by ``gpus`` and ``gpus_per_rank``, and the ranks per node unless they are given."""
    each = request.gpus_per_rank
    if request.gpus is None and each is None:
        return request
    name = "--gpus" if each is None else "--gpus-per-rank"
    available = site.node_type(request.partition).gpus
    if request.gpus_per_node == 0 or not available:
        why = "the run computes on CPUs" if available else "the site's file defines no GPUs for its nodes"
        raise UsageError(f"{name} requires GPUs, but {why}", hint=f"omit {name}, or choose another --partition")
    if request.gpus is not None and request.scale is not None:
        raise UsageError("--gpus and --scale cannot be combined", hint="use --gpus-per-rank and --ranks-per-node")
    if each is not None and request.scale is not None and request.ranks_per_node is None:
        raise UsageError("--gpus-per-rank and --scale require --ranks-per-node", hint="add --ranks-per-node")
    nodes = request.nodes or 1
    if request.gpus is not None:
        per_node, rest = divmod(request.gpus, nodes)
        if rest:
            raise UsageError(
                f"{request.gpus} GPUs cannot be divided among {nodes} nodes",
                hint="use a multiple of the number of nodes",
            )
    else:
        assert each is not None
        per_node = each * (request.ranks_per_node or max(1, available // each))
    if per_node > available:
        raise SubmitRefused(
            f"{per_node} GPUs per node requested, but the nodes have {available}",
            hint="request fewer GPUs or ranks per node, or more nodes",
        )
    ranks = request.ranks_per_node or (None if each is None else per_node // each)
    if each is not None and ranks is not None and ranks * each != per_node:
        raise UsageError(
            f"{ranks} ranks per node with {each} GPUs each do not match {per_node} GPUs per node",
            hint="omit --gpus or --gpus-per-rank",
        )
    return replace(request, gpus_per_node=per_node, ranks_per_node=ranks)


def _check_sizes(
    request: RunRequest, workload: Workload, unit: str, placements: Sequence[Placement], *, compares: bool
) -> None:
    """Raise ``UsageError`` if the sizes are too small for the workload, or are incompatible with the other options.

    ``compares`` is whether a matrix compares values of MPI run-time variables.
    """
    least = workload.needed_ranks
    if min(placement.ranks for placement in placements) < least:
        idle = f": {workload.overhead_ranks} of them do not compute" if workload.overhead_ranks else ""
        raise UsageError(
            f"workload {workload.name} requires at least {least} ranks{idle}",
            hint=f"use --ranks-per-node {least}, or a --scale that begins with {least} ranks",
        )
    if request.required_precision is not None and not request.scale and not compares:
        raise UsageError(
            "--precision requires --scale or --matrix mpi.VARIABLE=VALUE", hint="for example, add --scale 1,2"
        )
    if request.until_settled and request.axes and not compares:
        raise UsageError(
            "--until-settled requires --scale or --matrix mpi.VARIABLE=VALUE",
            hint="use --repeat to set the number of rounds",
        )
    if request.baseline == "copies" and not can_be_copied(unit, placements):
        raise UsageError(
            "--baseline copies requires a study over nodes that starts at 1 node", hint="use --scale nodes=1,2,4"
        )


def _idle_gpus(request: RunRequest, site: Site, placements: Sequence[Placement]) -> Iterator[str]:
    """Yield a notice if the job requests GPUs that none of the requested ranks uses, on nodes that jobs may share."""
    gpus, ranks = requested_gpus(site, request) or 0, max(placement.ranks_per_node for placement in placements)
    chosen = request.gpus is not None or request.gpus_per_rank is not None or request.ranks_per_node is None
    if chosen or ranks >= gpus or site.policies.exclusive or site.policies.cpus == "none":
        return
    yield (
        f"requests all {gpus} GPUs of each node for {ranks} rank(s); to request fewer, use "
        f"--gpus-per-rank 1, or --gpus N for the whole job"
    )


def _jobs_before(request: RunRequest, site: Site) -> list[str]:
    """Return the ids of the jobs that must end before the run starts, except for jobs that have already succeeded.

    Raises ``UsageError`` for an unknown run or a run of another scheduler, and ``SubmitRefused`` for a failed run.
    """
    jobs = []
    for name in request.runs_before:
        require_supported(site, ("--after",))
        run = find(name)
        planned = plan_of(run)
        if planned.scheduler != site.scheduler or planned.site != site.name:
            raise UsageError(
                f"--after {run.id}: this run is on site {planned.site}", hint="choose a run on the same site"
            )
        status = scheduler(planned.scheduler).poll([run])[0]
        if status.state is State.COMPLETED:
            continue
        if status.state.is_final:
            raise SubmitRefused(
                f"--after {run.id}: this run ended in state {status.state.value}",
                hint=f"see hidl logs {run.id}, or omit --after",
            )
        system = batch_systems.system(planned.scheduler)
        if planned.max_jobs and system is not None and not system.may_requeue(planned.header):
            raise UsageError(
                f"--after {run.id}: this run continues in further jobs (--until-done), whose ids are not known yet",
                hint=f"wait until it ends: hidl resume {run.id}",
            )
        job = read_reference(run).id
        if job is None:
            raise UsageError(
                f"--after {run.id}: the id of its job is unknown", hint=f"check the run with: hidl status {run.id}"
            )
        jobs.append(job)
    return jobs


def _on_all_hosts(request: RunRequest, hosts: Hosts) -> RunRequest:
    """Set the nodes and ranks per node implied by the hosts, unless they are given."""
    nodes = request.nodes or (None if request.scale else len(hosts.names))
    ranks = hosts.ranks_per_node(nodes or len(hosts.names), request.ranks_per_node)
    return replace(request, nodes=nodes, ranks_per_node=ranks)


def _workload(request: RunRequest, environment: EnvironmentInstallation | None, *, once: bool = False) -> Workload:
    has_mpi4py = environment is None or environment.described.has_mpi4py
    if not request.command:
        workload = load_workload(fspath(request.workload or ""))
        if environment is not None and workload.program.module and not has_mpi4py:
            raise MissingPrecondition(
                f"environment {environment.prefix} has no mpi4py, which workload {workload.name} requires",
                hint=f"run: {sh(str(environment.python))} -m pip install mpi4py",
            )
        return workload
    return own_workload(
        request.words,
        directory=absolute(request.directory) or str(Path.cwd()),
        stack=request.stack,
        assignments=request.assignments,
        matrix=[word for word in request.axes if not word.startswith(COMPARED)],
        scaling=request.scaling,
        uses_mpi=request.uses_mpi and has_mpi4py,
        separate_ranks=request.separate_ranks,
        once=once,
    )


def _resolve_options(
    request: RunRequest,
    site: Site,
    workload: Workload,
    environment: EnvironmentInstallation | None,
    *,
    parameters: Mapping[str, Value],
    matrix: Sequence[Mapping[str, Value]],
    use: DeviceUse,
    stack: Stack | None,
) -> ResolvedOptions:
    if environment is None:
        stack = stack or load_stack(
            request.stack or stack_for(workload, *({**parameters, **point} for point in matrix))
        )
        needed = not workload.program.once
        installed = _installation(request if needed else replace(request, hypothetical=True), site, stack.name)
        own = own_library(installed, stack)
    else:
        stack = load_stack(request.stack or _STACKS[environment.abi])
        installed, own = environment, _environment_library(environment, request, site, stack)
    described = environment.described if environment else None
    gpus = bool(requested_gpus(site, request))
    require_stack(
        use,
        workload.name,
        stack,
        described.packages if described else installed.manifest.get("packages", {}),
        site=site,
        accelerator=None if described else installed.manifest.get("accelerator"),
        environment=described.directory if described else None,
    )
    library, layers = own, tuple[Layer, ...]()
    tuning = tuple[Setting, ...]()
    if request.container is not None and request.mpi is None:  # the image's own library, of the family of the stack's
        _require_no_tuning(request, matrix)
    else:
        library = library_for(site, own, request.mpi, gpus=gpus)
        layers = _layers(request, site, stack, workload, library)
        tuning = merge_layers(library, layers, gpus=gpus, compared=request.is_compared)
    started_by = launcher(launcher_for(site, library, request.launcher))
    if described and library is own and own.name == stack.name:
        described = replace(described, mpi_stack=stack.name)
    return ResolvedOptions(
        site=site,
        workload=workload,
        parameters=parameters,
        stack=described.name if described else stack.name,
        installation=installed,
        library=library,
        launcher=started_by,
        tuning=tuning,
        matrix=_checked(matrix, library, layers, tuning, gpus=gpus),
        environment=described,
        use=use,
        recipe=None if described else stack,
        stdin=request.stdin_file,
        profile=request.profile,
        container=None
        if request.container is None
        else container_for(
            site,
            fspath(request.container),
            request.mounts or (),
            library=None if request.mpi is None else library,
            gpus=site.node_type(use.partition).gpu_vendor if use.device == "gpu" else None,
            launcher=started_by.name,
        ),
    )


def _check_container(request: RunRequest, *, is_script: bool) -> None:
    """Raise ``UsageError`` if the container, if any, cannot have the program or the variables of the options."""
    if request.container is None:
        return
    if is_script:
        raise UsageError(
            "--container cannot be combined with a batch script, which starts its ranks itself",
            hint="start the container in the script, or run its program: hidl run --container IMAGE -- PROGRAM",
        )
    if kept := sorted({*request.rank_variables} & {*NEVER_PASSED}):
        raise UsageError(
            f"--env-var {kept[0]} does not reach a program in a container, which has its own",
            hint=f"set it in the image: hidl run --container IMAGE -- env {kept[0]}=VALUE PROGRAM",
        )


def _require_no_tuning(request: RunRequest, matrix: Sequence[Mapping[str, Value]]) -> None:
    """Raise ``UsageError`` if the options tune the MPI library of an image, which is unknown."""
    if request.variables or any(map(compared_variables, matrix)):
        raise UsageError(
            "the MPI library of the image is unknown, so its run-time variables cannot be checked",
            hint=f"omit {_TUNE}, mount a library with --mpi NAME, or set the variable itself with --env-var NAME=VALUE",
        )


def _environment(request: RunRequest, site: Site) -> EnvironmentInstallation | None:
    return (
        None
        if request.env is None
        else environments.read(fspath(request.env), installation.installation_root(site, request.installation_prefix))
    )


def _environment_library(
    environment: EnvironmentInstallation, request: RunRequest, site: Site, stack: Stack
) -> Library:
    """Return an environment's MPI library, or that of ``stack`` if a stack is requested or the environment has none.

    Raises ``MissingPrecondition`` if the stack is required but not installed.
    """
    if environment.mpi is not None and request.stack is None:
        return replace(own_library(environment, stack), name=environment.described.name)
    if (request.mpi or site.default_mpi or OF_THE_STACK) != OF_THE_STACK:
        return Library(stack.name, stack.mpi)
    try:
        return own_library(_installation(request, site, stack.name), stack)
    except MissingPrecondition as error:
        raise MissingPrecondition(
            f"environment {environment.prefix} has no MPI library, and {error.message}", hint=error.hint
        ) from error


def own_library(installed: Installation, stack: Stack) -> Library:
    """Return an installation's own MPI library."""
    family, version = installed.mpi or (stack.mpi, installed.version_of(stack.mpi))
    netmods = WHEEL_NETMODS if family == "mpich" and installed.manifest.get("provider") == "wheels" else ()
    return Library(stack.name, family, version=version, prefix=str(installed.prefix), netmods=netmods)


def stack_for(workload: Workload, *parameters: Mapping[str, Value]) -> str:
    """Return the workload's first stack that supports all ``parameters``; raises ``InvalidInput`` if there is none."""
    for choice in workload.stacks:
        if all(holds(choice.when, each) for each in parameters):
            return choice.stack
    raise InvalidInput(
        f"no stack of workload {workload.name} supports these parameters", hint="see its `stacks`, or choose a --stack"
    )


def _installation(request: RunRequest, site: Site, stack: str) -> Installation:
    root = installation.root_of(site, stack, request.installation_prefix)
    try:
        return installation.find(site, stack, root=root)
    except MissingPrecondition:
        if not request.hypothetical:
            raise
        return Installation.at(root / site.name / stack / installation.CURRENT)


def _layers(request: RunRequest, site: Site, stack: Stack, workload: Workload, library: Library) -> tuple[Layer, ...]:
    """Return the tuning from the site, stack, workload and command line; later layers override earlier ones."""
    return (
        Layer(f"site {site.name}", site_tuning(site, library, gpus=bool(requested_gpus(site, request)))),
        Layer(f"stack {stack.name}", stack.tuning.get(library.family, {})),
        Layer(f"workload {workload.name}", workload.tuning.get(library.family, {})),
        Layer(_TUNE, _assignments(request.variables)),
    )


def _checked(
    matrix: Sequence[Mapping[str, Value]],
    library: Library,
    layers: Sequence[Layer],
    tuning: Sequence[Setting],
    *,
    gpus: bool,
) -> list[Mapping[str, Value]]:
    """Return the points of the matrix with run-time variables in the form exported to the ranks.

    A variable that has several names gets the one used in ``tuning``. Raises ``InvalidInput`` if the library does not
    support a variable or its value, and ``UsageError`` if two values are equal.
    """
    used = {main_name(setting.name, library.family): setting for setting in tuning}
    checked: list[Mapping[str, Value]] = []
    for point in matrix:
        if variables := compared_variables(point):
            merge_layers(library, (*layers, Layer(MATRIX, variables)), gpus=gpus, compared=True)
        exported = dict(without_variables(point))
        for name, value in point.items():
            if name.startswith(COMPARED):
                variable = name.removeprefix(COMPARED)
                fit = judge(library.family, library.version, variable, value) if variable in variables else None
                setting = used.get(main_name(variable, library.family))
                exported[COMPARED + (setting.name if setting else variable)] = (
                    fit.value if isinstance(fit, ValidSetting) else DEFAULT
                )
                if setting and isinstance(fit, ValidSetting) and fit.value == setting.value:
                    message = f"--matrix {name}: {setting.value} is already the default ({setting.origin})"
                    raise UsageError(message, hint="omit this value: the default is always measured")
        if exported in checked or len(exported) < len(point):
            raise UsageError(f"--matrix compares the same values twice: {format_parameters(exported)}")
        checked.append(exported)
    return checked


def _assignments(words: Sequence[str]) -> dict[str, str]:
    """Parse the values of ``--tune``; raises ``InvalidInput`` listing all values not of the form ``NAME=VALUE``."""
    invalid = [Problem(f"{_TUNE} {word!r} has no '='", "NAME=VALUE") for word in words if "=" not in word]
    if invalid:
        raise InvalidInput(f"{len(invalid)} invalid {_TUNE} value(s)", problems=invalid)
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _placements(
    request: RunRequest, site: Site, least: int, *, cores: int | None = None
) -> tuple[str, list[Placement]]:
    """Return the unit of sizes (``ranks`` or ``nodes``) and the placement of each step, starting with the smallest.

    By default, there is one rank per GPU, or one per node without GPUs, and at least ``least`` ranks in total.
    ``cores`` limits the threads if a job has fewer cores than its nodes.
    """

    def per_node(nodes: int) -> int:
        gpus = requested_gpus(site, request)
        return request.ranks_per_node or max(gpus or 1, -(-least // nodes))

    if (sizes_text := request.sizes) is None:
        nodes = request.nodes or 1
        unit, placements = "ranks", [Placement.of_nodes(nodes, per_node(nodes))]
    else:
        if request.nodes not in (None, 1):
            raise UsageError(
                "--scale and --nodes cannot be combined", hint="omit --nodes: --scale sets the number of nodes"
            )
        unit, sizes = parse_scale(sizes_text, default_unit=_unit(site))
        if unit == "ranks":
            placements = [Placement.of_ranks(ranks, request.ranks_per_node) for ranks in sizes]
        else:
            placements = [Placement.of_nodes(nodes, per_node(min(sizes))) for nodes in sizes]
    threads = request.threads
    if cores is not None and threads is None:
        most = site.node_type(request.partition).cores or cores
        threads = max(1, min(cores, most) // max(placement.ranks_per_node for placement in placements))
    share = gpu_share(site, request)
    return unit, bind_to_cores(site, placements, partition=request.partition, threads=threads, share=share)


def _unit(site: Site) -> str:
    """Return the unit of the sizes in ``--scale``."""
    return "ranks" if site.scheduler == "local" else "nodes"


def parse_scale(text: str, *, default_unit: str) -> tuple[str, list[int]]:
    """Parse ``1,2,4``, ``ranks=1,2`` or ``nodes=1,2``; raises ``UsageError`` for anything else."""
    unit, equals, numbers = text.rpartition("=")
    words = numbers.split(",")
    if (equals and unit not in ("ranks", "nodes")) or not all(word.strip().isdecimal() for word in words):
        raise UsageError(f"invalid --scale {text!r}", hint="use sizes such as --scale 1,2,4 or --scale ranks=1,2,4")
    sizes = [int(word) for word in words]
    if 0 in sizes or len(set(sizes)) < 2 or len(set(sizes)) < len(sizes):
        raise UsageError(
            f"--scale {text!r} requires two or more different sizes, each at least 1",
            hint="omit --scale to run a single size",
        )
    return unit or default_unit, sorted(sizes)
