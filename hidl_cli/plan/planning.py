"""Make launch plans from resolved options."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import batch_systems, paths
from hidl_cli.batch_systems import SSH, SYSTEMS
from hidl_cli.errors import UsageError
from hidl_cli.launch.container import Container, ContainerMount
from hidl_cli.launch.launchers.contract import Gpus, Launch, Launcher, Request
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.launch.placement import Allocation, Placement, allocate, missing, requested_gpus
from hidl_cli.mpi import Library
from hidl_cli.plan.devices import DEVICE, GPUS_PER_RANK, DeviceUse, gives_gpu_memory
from hidl_cli.plan.launch_plan import Baseline, Plan, Step
from hidl_cli.plan.parameters import SIZES, arguments, command
from hidl_cli.plan.workload import Program, Value, Workload, ranks_kept
from hidl_cli.recorder import STARTER, Profiling
from hidl_cli.schedulers import IN_ALLOCATION, scheduler, scheduler_for
from hidl_cli.site.job_options import JobSettings
from hidl_cli.site.schema import Site
from hidl_cli.stack.activation import UserEnvironment
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.schema import Stack
from hidl_cli.tuning.judge import Setting, compared_variables, without_variables
from hidl_workloads.container import NEVER_PASSED
from hidl_workloads.own_program import (
    CHECK,
    CONTAINER,
    MOST_RANKS,
    PROCESSES,
    RANKS_PER_NODE,
    SEPARATE_RANKS,
    STDIN,
    encode,
)
from hidl_workloads.world import CHOOSES_GPU, GPU_AWARE

if TYPE_CHECKING:
    from hidl_cli.plan.batch_script import BatchScript
    from hidl_cli.schedulers.backend import EnclosingJob


def warnings_of(plan: Plan) -> tuple[str, ...]:
    """Return a plan's warnings for the user, one sentence each."""
    missing = f"site {plan.site} requires {' and '.join(plan.missing)}, which is not set"
    system = batch_systems.system(plan.scheduler)
    job = os.environ.get(system.job_id) if system else None
    outer = (
        f"the run is a separate job: it does not use the nodes of job {job}, and waits if that job occupies all of them"
    )
    return (*plan.warnings, *([missing] if plan.missing else ()), *([outer] if job else ()))


#: Variables that the job script sets at run time and that must be forwarded to every rank.
SET_BY_THE_SCRIPT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "VIRTUAL_ENV",
    "HIDL_STACK",
    "HIDL_RUN_ID",
    "HIDL_WORLD_SIZE",
    "HIDL_METRICS",
    "HIDL_FINDINGS",
    "HIDL_CORES_PER_RANK",
    "HIDL_NODE_MEMORY",
    "HIDL_SITE_MPI",
    "HIDL_CHECKPOINT",
    "HIDL_CHECKPOINT_INTERVAL",
    "HIDL_CHECKPOINT_KEEP",
    "HIDL_STOP",
    "HIDL_JOB_STARTED",
)


#: Environment variable that contains the site's ``address_suffix``.
ADDRESS_SUFFIX = "HIDL_ADDRESS_SUFFIX"

#: Variable that selects the ABI of an MPI library outside of the stack for mpi4py.
MPI_ABI = "MPI4PY_MPIABI"

#: Variables that are also forwarded if the program's ``directory`` is set.
_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")

#: enroot gives a container GPUs, and the driver's libraries, only if it or its image has these variables.
_FOR_NVIDIA_HOOK = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}

#: Variables that are also forwarded in a conda environment.
_CONDA = ("CONDA_PREFIX", "CONDA_DEFAULT_ENV")

#: Minimum and maximum time, in seconds, that a program gets to stop before its time limit.
_SHORTEST_STOP, _LONGEST_STOP = 30, 600

#: Unlike the steps of hidl's own job scripts, those of a batch script do not overlap.
_UNSET_FOR_SCRIPTS = "unset SLURM_OVERLAP && "

_MANY_NODES = 4  # from this size on, measuring one node while the others are idle is too expensive


@dataclass(frozen=True)
class ResolvedOptions:
    """The resolved options of a run.

    Attributes:
        matrix: Points to compare, each given by the parameters that differ (default: a single empty point).
        environment: The user's environment that replaces the stack.
        recipe: Recipe of the stack.
        stdin: See ``Plan``.
        script: The batch script, if the program is one.
        enclosing: The allocation in which hidl itself runs, if the run uses it.
        profile: See ``Plan``.
        container: See ``Plan``.
    """

    site: Site
    workload: Workload
    parameters: Mapping[str, Value]
    stack: str
    installation: Installation
    library: Library
    launcher: Launcher
    tuning: Sequence[Setting] = ()
    matrix: Sequence[Mapping[str, Value]] = ({},)
    environment: UserEnvironment | None = None
    use: DeviceUse = field(default_factory=lambda: DeviceUse("cpu"))
    recipe: Stack | None = None
    stdin: str | None = None
    script: BatchScript | None = None
    enclosing: EnclosingJob | None = None
    profile: Profiling | None = None
    container: Container | None = None

    @property
    def sources(self) -> dict[str, Any]:
        """The documents of the site and of the stack's recipe."""
        models = {"site": self.site, **({} if self.recipe is None else {"stack": self.recipe})}
        return {
            name: model.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"extends"})
            for name, model in models.items()
        }


@dataclass(frozen=True)
class _StepContext:
    """The options that determine how steps are launched."""

    scheduler: str | None
    workload: Workload
    parameters: Mapping[str, Value]
    installation: Installation
    library: Library
    launcher: Launcher
    matrix: Sequence[Mapping[str, Value]]
    environment: UserEnvironment | None
    stdin: str | None
    profile: Profiling | None
    container: Container | None

    def run_module(self, module: str) -> tuple[str, ...]:
        """Return the command that starts a module on a rank. If the runtime is pyxis, it runs inside the image."""
        if self.container is not None and self.container.runtime == "pyxis":
            return ("python3", f"{self.installation.own_package}/start.py", module)
        return self.installation.run_module(module)


def make_plan(
    options: ResolvedOptions,
    *,
    unit: str,
    placements: Sequence[Placement],
    repetitions: int,
    job: AllocationOptions,
    target: float | None = None,
    baseline: Baseline | None = None,
    until_settled: bool = False,
    precision: float | None = None,
    variables: Mapping[str, str] | None = None,
    max_jobs: int = 0,
    least_nodes: int | None = None,
) -> Plan:
    """Make the plan of a run. Each repetition has one step for every combination of placement and matrix point.

    Also propagates errors raised by ``scheduler_for``, ``allocate`` and the launcher.

    Args:
        options: The resolved options.
        unit: Unit of the step sizes, ``ranks`` or ``nodes``.
        placements: Placements (nodes and ranks) of the steps, starting with the smallest.
        repetitions: Number of repetitions.
        job: Job options.
        target: Target efficiency.
        baseline: Baseline of a study. By default, it is the smallest step. A study from 1 to 4 or more nodes runs
            concurrent copies of this step on all nodes if the launcher supports them.
        until_settled: Whether to end the study as soon as its verdict is settled.
        precision: See ``Plan``.
        variables: Environment variables that the user sets on every rank.
        max_jobs: See ``Plan``.
        least_nodes: See ``Allocation``.
    """
    site, workload, library = options.site, options.workload, options.library
    batch = scheduler_for(site)
    allocation = allocate(site, f"hidl-{workload.name}", placements, job)
    if max_jobs:
        stop_seconds = _stop_seconds(allocation.time_limit)
        allocation = replace(allocation, stop_seconds=stop_seconds, least_nodes=least_nodes)
    if least_nodes is not None:
        allocation = _without_tasks(allocation)
    warnings = tuple(_warnings(options, job.partition, placements))
    placements, notice = _within_share(allocation, options.launcher, placements)
    partition = site.partition(job.partition)
    processes = workload.program.processes or 1
    threads = max(1, placements[0].threads_per_rank // processes)
    of_process = replace(placements[0], threads_per_rank=threads)
    environment = shared_environment(site, library, options.installation, of_process, options.tuning)
    # The ranks of all steps get the same number of GPUs, just as they get the same number of threads.
    gpus = Gpus.of(requested_gpus(site, job), max(placement.ranks_per_node for placement in placements))
    if workload.program.once:
        environment = {}
    environment |= {DEVICE: options.use.device, **({GPUS_PER_RANK: str(gpus.per_rank)} if gpus else {})}
    if least_nodes is not None:
        environment[MOST_RANKS] = str(placements[0].ranks * processes)
    environment |= variables or {}
    context = _StepContext(
        site.scheduler,
        workload,
        options.parameters,
        options.installation,
        library,
        options.launcher,
        options.matrix,
        options.environment,
        options.stdin,
        options.profile,
        options.container,
    )
    steps = _steps(context, [*_sized(unit, placements)], repetitions, environment, gpus)
    on_fewer_nodes = [
        step
        for fewer in on_fewer(placements[0], least_nodes)
        for step in _steps(context, [*_sized(unit, [fewer])], 1, environment, gpus)
    ]
    header = batch.header(allocation, site.policies)
    if options.script is not None:
        own = batch.header(replace(allocation, settings=JobSettings()), site.policies)
        header = options.script.header(own, header[len(own) :], batch.name)
    if options.enclosing is not None:
        batch, header = scheduler(f"{batch.name}{IN_ALLOCATION}"), ()
        allocation = replace(allocation, time_limit=job.time_limit)
    if baseline is None:
        large = can_be_copied(unit, placements) and allocation.nodes >= _MANY_NODES
        baseline = "copies" if large and steps[0].launch.host_option is not None else "single"
    if baseline == "copies":
        steps = tuple(_copied(options.launcher, step, allocation.nodes) for step in steps)
    now = datetime.now(timezone.utc)
    return Plan(
        run=new_id(workload.name, now),
        created=now.isoformat(timespec="seconds"),
        site=site.name,
        scheduler=batch.name,
        launcher=options.launcher.name,
        partition=job.partition or site.default_partition,
        allocation=allocation,
        header=header,
        stack=options.stack,
        prefix=str(options.installation.prefix),
        activate=str(options.installation.activate),
        lock=options.installation.lock,
        mpi=library,
        modules=(*site.policies.modules, *library.modules),
        tuning=tuple(options.tuning),
        workload=workload,
        parameters=dict(options.parameters),
        unit=unit,
        steps=steps,
        environment=environment,
        target=target,
        baseline=baseline,
        until_settled=until_settled,
        precision=precision,
        max_jobs=max_jobs,
        charge=partition.charge if partition else None,
        missing=() if options.enclosing else tuple(missing(site.policies, allocation)),
        warnings=(*warnings, *notice),
        user_environment=options.environment,
        device=options.use.device,
        stdin=options.stdin,
        profile=options.profile,
        container=options.container,
        sources=options.sources,
        on_fewer_nodes=tuple(on_fewer_nodes),
    )


def _without_tasks(allocation: Allocation) -> Allocation:
    """Return an allocation that requests the cores of a node's ranks for a single task.

    With a number of tasks, Slurm would choose the smallest number of nodes that has room for them. Ranks that are not
    bound get one CPU each, as from ``--ntasks-per-node``, which counts hardware threads.
    """
    if allocation.cores_per_rank is None:
        return replace(allocation, cores_per_node=allocation.ranks_per_node, threads_per_core=None)
    cores = allocation.cores_per_rank * allocation.ranks_per_node
    return replace(allocation, cores_per_rank=None, cores_per_node=cores)


def _stop_seconds(limit: float | None) -> int:
    """Return how many seconds before its time limit a job is requested to stop: a tenth of the limit, within bounds."""
    if limit is None:
        return _LONGEST_STOP
    return int(min(max(limit / 10, _SHORTEST_STOP), _LONGEST_STOP, limit / 2))


#: Launchers that bind ranks only to the cores of their job.
_WITHIN_THE_JOB = ("srun", "flux")


def _within_share(
    allocation: Allocation, launcher: Launcher, placements: Sequence[Placement]
) -> tuple[Sequence[Placement], tuple[str, ...]]:
    """Return the placements and warnings. Ranks are left unbound if they might be bound to the cores of other jobs.

    This can happen if the job has only part of a node, and the launcher counts cores from the node's first core.
    """
    if allocation.exclusive is not False or launcher.name in _WITHIN_THE_JOB or not placements[0].bind:
        return placements, ()
    notice = (
        f"ranks are not bound to cores: launcher {launcher.name} cannot bind them if the job has only part of a node"
    )
    return [replace(placement, bind=False) for placement in placements], (notice,)


def planned_again(plan: Plan, placement: Placement, launcher: Launcher) -> Plan:
    """Replace the steps of a plan that has no matrix with a single step on ``placement``, started by ``launcher``.

    The step is launched according to the current fields of the plan. Propagates errors raised by the launcher.
    """
    installed = Installation.at(Path(plan.prefix))
    context = _StepContext(
        plan.scheduler,
        plan.workload,
        plan.parameters,
        installed,
        plan.mpi,
        launcher,
        ({},),
        plan.user_environment,
        plan.stdin,
        plan.profile,
        plan.container,
    )
    per_node, per_rank = plan.allocation.gpus_per_node, plan.environment.get(GPUS_PER_RANK)
    gpus = Gpus(per_node, int(per_rank)) if per_node and per_rank else None
    steps = _steps(context, [*_sized(plan.unit, [placement])], 1, plan.environment, gpus)
    return replace(plan, steps=steps, on_fewer_nodes=(), launcher=launcher.name, target=None, until_settled=False)


def on_fewer(placement: Placement, least: int | None) -> list[Placement]:
    """Return the same ranks per node on each smaller number of nodes, from ``least`` on; None if there is none."""
    each = placement.ranks_per_node
    return [
        replace(placement, nodes=nodes, ranks=nodes * each)
        for nodes in range(least or placement.nodes, placement.nodes)
    ]


def new_id(name: str, now: datetime) -> str:
    """Return the id of a new run."""
    return f"{now:%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"


def shared_environment(
    site: Site, library: Library, installed: Installation, placement: Placement, tuning: Sequence[Setting]
) -> dict[str, str]:
    """Return the environment variables that all ranks get, regardless of the launcher."""
    return {
        **placement.environment(),
        **network_environment(site),
        **site.policies.environment,
        **library.environment,
        **({} if library.prefix == str(installed.prefix) else {MPI_ABI: library.traits.abi}),
        **{setting.name: setting.value for setting in tuning},
    }


def network_environment(site: Site) -> dict[str, str]:
    """Return the variables that make programs without MPI use the site's network between nodes."""
    suffix, interface = site.address_suffix, site.socket_interface
    return {
        **({} if suffix is None else {ADDRESS_SUFFIX: suffix}),
        **({} if interface is None else dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), interface)),
    }


def _warnings(options: ResolvedOptions, partition_name: str | None, placements: Sequence[Placement]) -> Iterator[str]:
    site = options.site
    partition = site.partition(partition_name)
    yield from options.use.notices
    if options.enclosing is not None:
        yield f"using allocation {options.enclosing.id}, in which hidl runs (--new-job submits another job)"
    if site.status == "retired":
        yield f"site {site.name} is retired" + (f"; its successor is {site.successor}" if site.successor else "")
    if partition and partition.restricted:
        yield "the site restricts access to this partition"
    if options.installation.lock and (unverified := _unverified(options)):
        yield unverified
    if not options.installation.lock and not options.workload.program.once:
        yield f"stack {options.stack} is not installed for site {site.name}: the script shows its future path"
    if not all(placement.bind for placement in placements) and not options.workload.program.once:
        known = site.node_type(partition_name).cores is not None
        why = (
            "more threads than cores on a node"
            if known
            else "the site's file does not specify the number of cores per node"
        )
        yield f"{why}: ranks are not bound, and timings are not suitable for judging scaling"


def _unverified(options: ResolvedOptions) -> str | None:
    """Return a warning if the installation has not been verified with this MPI library, or None otherwise."""
    if options.environment is not None:
        return None
    verification = options.installation.manifest.get("verification", {})
    if verification.get("where") == "skip":
        return f"stack {options.stack} was never verified (--verify skip)"
    with_ = (verification.get("mpi") or {}).get("name", options.stack)
    if with_ == options.library.name:
        return None
    return (
        f"stack {options.stack} was verified with MPI library {with_}, but not with {options.library.name}: "
        "use hidl install --verify job"
    )


def _steps(
    context: _StepContext,
    sizes: Sequence[tuple[int, Placement]],
    repetitions: int,
    environment: Mapping[str, str],
    gpus: Gpus | None,
) -> tuple[Step, ...]:
    """Return the steps in order of execution."""
    world = context.installation.run_module("hidl_workloads.world")
    can_check = context.environment is None or context.environment.has_mpi4py
    library = context.library
    if context.container is not None:
        compared = {name for point in context.matrix for name in compared_variables(point)}
        container = replace(
            context.container,
            variables=tuple(sorted({*environment, *compared})),
            checks_mpi=context.workload.program.mpi,
        )
        context = replace(context, container=container)
        library = _in_image(context, container, str(context.workload.program.directory))

    def launch(words: tuple[str, ...], placement: Placement, number: int, variables: Mapping[str, str]) -> Launch:
        if context.workload.program.once:
            return _once(context, words)
        if context.workload.program.directory is not None:
            variables = {**variables, **_variables_of_ranks(context.workload.program, placement)}
        if (used := context.container) and used.runtime == "pyxis" and used.gpus == "nvidia":
            variables = {**_FOR_NVIDIA_HOOK, **variables}
        request = Request(
            placement,
            words,
            library,
            environment={**environment, **variables},
            forward=(
                *SET_BY_THE_SCRIPT,
                *(_RENDEZVOUS if context.workload.program.directory else ()),
                *(_CONDA if context.environment and context.environment.kind == "conda" else ()),
            ),
            hostfile=f"steps/{number}/hosts",
            on_one_host=context.scheduler == "local",
            through_ssh=context.scheduler == SSH,
            gpus=gpus,
        )
        launched = context.launcher.launch(request)
        return replace(launched, environment={**launched.environment, **variables})

    def step(number: int, size: int, placement: Placement, repetition: int, point: Mapping[str, Value]) -> Step:
        parameters, variables = {**context.parameters, **without_variables(point)}, compared_variables(point)
        program = context.workload.program_for(parameters)
        gpu_aware = environment.get(DEVICE) == "gpu" and gives_gpu_memory(context.workload, parameters)
        check = (*world, GPU_AWARE) if gpu_aware else world
        if context.container is not None:
            check = _check_in_image(context, program, parameters, placement)
        words = _rank_command(context, program, parameters, placement, gpu_aware=gpu_aware)
        has_scheduler = context.scheduler != "local"
        return Step(
            size,
            repetition,
            placement,
            launch(words, placement, number, variables),
            launch(check, placement, number, variables) if program.mpi and not program.module and can_check else None,
            point=point,
            parser=program.parser,
            timed=program.timed,
            patterns=tuple(program.patterns),
            unbound=None if has_scheduler else launch(words, replace(placement, bind=False), number, variables),
        )

    # Each round starts with a different point, so that no point always benefits from being launched first.
    points = len(context.matrix)
    planned = [
        (size, placement, round_, context.matrix[(round_ - 1 + position) % points])
        for round_ in range(1, repetitions + 1)
        for size, placement in sizes
        for position in range(points)
    ]
    return tuple(step(number, *each) for number, each in enumerate(planned, start=1))


def _in_image(context: _StepContext, container: Container, directory: str) -> Library:
    """Return the MPI library, with additional srun options that start tasks in the image if the runtime is pyxis."""
    needed = [
        ContainerMount(context.installation.own_package, context.installation.own_package, read_only=True),
        ContainerMount(str(paths.runs()), str(paths.runs())),
        ContainerMount(directory, directory),
    ]
    container.require_mountable(needed)
    of_the_job = (name for name in (*SET_BY_THE_SCRIPT, *_RENDEZVOUS) if name not in NEVER_PASSED)
    variables = dict.fromkeys([*container.variables, *of_the_job, RANKS_PER_NODE, PROCESSES, SEPARATE_RANKS])
    if not (options := container.srun_options(needed, tuple(variables))):
        return context.library
    arguments = dict(context.library.launcher_arguments)
    return replace(context.library, launcher_arguments=arguments | {"srun": (*arguments.get("srun", ()), *options)})


def _check_in_image(
    context: _StepContext, program: Program, parameters: Mapping[str, Value], placement: Placement
) -> tuple[str, ...]:
    """Return the argv of a rank that checks the world of the program's MPI library in the image."""
    words = _program_command(context, program, parameters, placement, gpu_aware=False)
    at = words.index(CONTAINER) + 2  # after the document
    return (*words[:at], CHECK, *words[at:])


def _once(context: _StepContext, words: tuple[str, ...]) -> Launch:
    """Return the launch of a batch script, with the same submission directory as if it were submitted without hidl."""
    directory = str(context.workload.program.directory)
    system = SYSTEMS.get(context.scheduler or "")
    submitted = system.submit_directory if system else None
    variables = {submitted: directory} if submitted and submitted != "PWD" else {}
    start = f'{_UNSET_FOR_SCRIPTS}exec < "$1" && cd -- "$2" && shift 2 && exec "$@"'
    return Launch(("bash", "-c", start, "bash", context.stdin or os.devnull, directory, *words), environment=variables)


def _variables_of_ranks(program: Program, placement: Placement) -> dict[str, str]:
    """Return the variables that describe the launch to a program whose ``directory`` is set."""
    return {
        RANKS_PER_NODE: str(placement.ranks_per_node),
        **({PROCESSES: str(program.processes)} if program.processes else {}),
        **({SEPARATE_RANKS: "1"} if program.separate_ranks else {}),
    }


def _sized(unit: str, placements: Sequence[Placement]) -> Iterator[tuple[int, Placement]]:
    """Yield each placement with its size in ``unit``."""
    for placement in placements:
        yield placement.nodes if unit == "nodes" else placement.ranks, placement


def can_be_copied(unit: str, placements: Sequence[Placement]) -> bool:
    """Return whether copies of the smallest step can run on all nodes at once.

    The smallest step must use a single node, and all other steps must use several nodes.
    """
    alone = [placement for placement in placements if placement.nodes == 1]
    return unit == "nodes" and len(alone) == 1 and len(placements) > 1


def _copied(launcher: Launcher, step: Step, nodes: int) -> Step:
    """Turn a step on one node into ``nodes`` copies, and return any other step unchanged."""
    if step.placement.nodes > 1:
        return step
    if step.launch.host_option is None:
        raise UsageError(
            f"launcher {launcher.name} cannot restrict concurrent launches to one host each",
            hint="use --baseline single, or another launcher",
        )
    return replace(step, copies=nodes)


def _rank_command(
    context: _StepContext, program: Program, parameters: Mapping[str, Value], placement: Placement, *, gpu_aware: bool
) -> tuple[str, ...]:
    """Return the argv of a rank: its program, and wrappers that record the rank and store its output if required."""
    words = _program_command(context, program, parameters, placement, gpu_aware=gpu_aware)
    whose = ranks_kept(program.patterns)
    if whose is not None:
        words = (*context.run_module("hidl_workloads.rank_output"), whose, *words)
    return (*STARTER, *words) if context.profile else words


def _program_command(
    context: _StepContext, program: Program, parameters: Mapping[str, Value], placement: Placement, *, gpu_aware: bool
) -> tuple[str, ...]:
    """Return the argv of a rank without the wrapper for its output.

    Python modules are started by a module that checks the size of the world. Commands in the stack take precedence over
    those in PATH. A command with a directory is started by a module that changes to that directory and opens standard
    input. A command that passes GPU addresses to MPI is started by a module that exports the local rank.
    """
    installation = context.installation
    if program.arguments is not None:
        sizes = dict(zip(SIZES, (placement.ranks, placement.nodes), strict=True))
        parameters = {**sizes, **parameters}
    after = arguments(program, parameters, context.workload.parameters)
    if program.module:
        starter = "hidl_workloads.world" if program.threads else "hidl_workloads.single_threaded"
        options = (CHOOSES_GPU,) if program.chooses_gpu else ()
        return (*installation.run_module(starter), *options, program.module, *after)
    first, *rest = command(program, parameters)
    of_the_stack = installation.prefix / "bin" / first
    is_installed = of_the_stack.is_file() and context.container is None
    words = (str(of_the_stack) if is_installed else first, *rest, *after)
    if program.once:
        return (first, *rest, *after)
    if program.directory is None:
        return (*installation.run_module("hidl_workloads.local_rank"), *words) if gpu_aware else words
    given = [] if context.stdin is None else [STDIN, context.stdin]
    given += [] if context.container is None else [CONTAINER, context.container.document]
    return (*context.run_module("hidl_workloads.own_program"), *encode([*given, program.directory, *words]))
