"""Make the launch plan from choices that are already made."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli.batch_systems import SSH
from hidl_cli.errors import UsageError
from hidl_cli.launch import placement as limits
from hidl_cli.launch.launchers.contract import Gpus, Launch, Launcher, Request
from hidl_cli.launch.placement import Asked, Placement, allocate, missing, requested_gpus
from hidl_cli.mpi import Library
from hidl_cli.plan.devices import DEVICE, GPUS_PER_RANK, DeviceUse, gives_gpu_memory
from hidl_cli.plan.launch_plan import Baseline, Plan, Step
from hidl_cli.plan.parameters import SIZES, arguments, command
from hidl_cli.plan.workload import Program, Value, Workload, ranks_kept
from hidl_cli.schedulers import scheduler_for
from hidl_cli.site.schema import Partition, Site
from hidl_cli.stack.activation import UserEnvironment
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.schema import Stack
from hidl_cli.tuning.judge import Setting, compared_variables, without_variables
from hidl_workloads.own_program import STDIN, encode
from hidl_workloads.world import CHOOSES_GPU, GPU_AWARE

if TYPE_CHECKING:
    from hidl_cli.plan.launch_plan import Plan


@dataclass(frozen=True)
class Estimate:
    """``node_hours`` = ``nodes`` x ``seconds`` / 3600, an upper bound: the job may end before its time limit.

    ``cost`` = ``node_hours`` x ``charge``, in the site's units (node-hours if it charges 1). None: unknown.
    ``max_nodes`` and ``max_seconds`` are the partition's limits for a job of this size.
    """

    nodes: int
    seconds: float | None
    node_hours: float | None
    charge: float | None
    cost: float | None
    min_nodes: int | None
    max_nodes: int | None
    max_seconds: float | None


def estimate(plan: Plan, partition: Partition | None) -> Estimate:
    """Estimate the cost of a plan."""
    nodes, seconds = plan.allocation.nodes, plan.allocation.time_limit
    node_hours = None if seconds is None else nodes * seconds / 3600
    return Estimate(
        nodes=nodes,
        seconds=seconds,
        node_hours=node_hours,
        charge=plan.charge,
        cost=None if node_hours is None or plan.charge is None else node_hours * plan.charge,
        min_nodes=partition.min_nodes if partition else None,
        max_nodes=partition.max_nodes if partition else None,
        max_seconds=limits.longest(partition, nodes),
    )


def format_estimate(estimate: Estimate, plan: Plan) -> list[str]:
    """Format the estimate in lines for people."""
    where = f"partition {plan.partition} of site {plan.site}" if plan.partition else f"site {plan.site}"
    if estimate.seconds is None or estimate.node_hours is None:
        lines = [f"{where}: {estimate.nodes} node(s), without a time limit (--time): no upper bound"]
    else:
        most = limits.clock(estimate.seconds)
        lines = [f"{where}: {estimate.nodes} node(s) for {most} at most = {estimate.node_hours:g} node-hours at most"]
    if estimate.charge is None:
        lines.append("cost: unknown: the site's file gives no charge for this partition")
    elif estimate.cost is not None:
        lines.append(f"cost: {estimate.charge:g} a node-hour = {estimate.cost:g} of the site's units at most")
    nodes = f"{estimate.min_nodes or 1} to {estimate.max_nodes or '(unknown)'} nodes"
    wall = "an unknown time" if estimate.max_seconds is None else limits.clock(estimate.max_seconds)
    lines.append(f"limits: {nodes}, {wall} for a job of this size: allowed")
    return lines


#: What the job script sets only when it runs, and every rank must get.
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
)


#: What it sets for a program with a directory, too.
_MEETING_POINT = ("MASTER_ADDR", "MASTER_PORT")

#: What it sets in an environment of conda, too.
_OF_CONDA = ("CONDA_PREFIX", "CONDA_DEFAULT_ENV")

_MANY_NODES = 4  # from here on, measuring one node while the others idle costs too much


@dataclass(frozen=True)
class Choices:
    """What to run: site, workload, parameters, stack, MPI library, launcher and tuning.

    ``matrix``: the points to compare, as the parameters that differ; by default one empty point. ``environment``: of
    the user, in the place of the stack. ``use``: what the run computes on. ``recipe``: the stack's. ``stdin``: see
    ``Plan``.
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
    use: DeviceUse = field(default_factory=lambda: DeviceUse("cpu", Asked()))
    recipe: Stack | None = None
    stdin: str | None = None

    @property
    def sources(self) -> dict[str, Any]:
        """The documents of the site and of the stack's recipe."""
        models = {"site": self.site, **({} if self.recipe is None else {"stack": self.recipe})}
        return {
            name: model.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"extends"})
            for name, model in models.items()
        }


@dataclass(frozen=True)
class _Started:
    """What decides how a step is started."""

    scheduler: str | None
    workload: Workload
    parameters: Mapping[str, Value]
    installation: Installation
    library: Library
    launcher: Launcher
    matrix: Sequence[Mapping[str, Value]]
    environment: UserEnvironment | None
    stdin: str | None


def make_plan(
    choices: Choices,
    *,
    unit: str,
    placements: Sequence[Placement],
    repetitions: int,
    asked: Asked,
    target: float | None = None,
    baseline: Baseline | None = None,
    until_settled: bool = False,
    precision: float | None = None,
) -> Plan:
    """Make the plan; its steps are the placements and points in turn, interleaved over the repetitions.

    ``unit``: what a step's size counts, ``ranks`` or ``nodes``. Without ``baseline``, a study from 1 to 4 nodes or more
    is compared with copies if the launcher can start them, and any other with its smallest step.

    Raises what ``scheduler_for``, ``allocate`` and the launcher raise.
    """
    site, workload, library = choices.site, choices.workload, choices.library
    batch = scheduler_for(site)
    allocation = allocate(site, f"hidl-{workload.name}", placements, asked)
    partition = site.partition(asked.partition)
    environment = shared_environment(site, library, choices.installation, placements[0], choices.tuning)
    # As with threads, ranks of all steps get the same number of GPUs.
    gpus = Gpus.of(requested_gpus(site, asked), max(placement.ranks_per_node for placement in placements))
    environment |= {DEVICE: choices.use.device, **({GPUS_PER_RANK: str(gpus.per_rank)} if gpus else {})}
    started = _Started(
        site.scheduler,
        workload,
        choices.parameters,
        choices.installation,
        library,
        choices.launcher,
        choices.matrix,
        choices.environment,
        choices.stdin,
    )
    steps = _steps(started, [*_sized(unit, placements)], repetitions, environment, gpus)
    if baseline is None:
        large = can_be_copied(unit, placements) and allocation.nodes >= _MANY_NODES
        baseline = "copies" if large and steps[0].launch.host_option is not None else "single"
    if baseline == "copies":
        steps = tuple(_copied(choices.launcher, step, allocation.nodes) for step in steps)
    now = datetime.now(timezone.utc)
    return Plan(
        run=new_id(workload.name, now),
        created=now.isoformat(timespec="seconds"),
        site=site.name,
        scheduler=batch.name,
        launcher=choices.launcher.name,
        partition=asked.partition or site.default_partition,
        allocation=allocation,
        header=batch.header(allocation, site.policies),
        stack=choices.stack,
        prefix=str(choices.installation.prefix),
        activate=str(choices.installation.activate),
        lock=choices.installation.lock,
        mpi=library,
        modules=(*site.policies.modules, *library.modules),
        tuning=tuple(choices.tuning),
        workload=workload,
        parameters=dict(choices.parameters),
        unit=unit,
        steps=steps,
        environment=environment,
        target=target,
        baseline=baseline,
        until_settled=until_settled,
        precision=precision,
        charge=partition.charge if partition else None,
        missing=tuple(missing(site.policies, allocation)),
        warnings=tuple(_warnings(choices, asked.partition, placements)),
        user_environment=choices.environment,
        device=choices.use.device,
        stdin=choices.stdin,
        sources=choices.sources,
    )


def planned_again(plan: Plan, placement: Placement, launcher: Launcher) -> Plan:
    """Return the plan with a single step, one repetition on ``placement``, launched by what its other fields now say.

    The plan has no matrix. Raises what the launcher raises.
    """
    installed = Installation.at(Path(plan.prefix))
    started = _Started(
        plan.scheduler,
        plan.workload,
        plan.parameters,
        installed,
        plan.mpi,
        launcher,
        ({},),
        plan.user_environment,
        plan.stdin,
    )
    per_node, per_rank = plan.allocation.gpus_per_node, plan.environment.get(GPUS_PER_RANK)
    gpus = Gpus(per_node, int(per_rank)) if per_node and per_rank else None
    steps = _steps(started, [*_sized(plan.unit, [placement])], 1, plan.environment, gpus)
    return replace(plan, steps=steps, launcher=launcher.name, target=None, until_settled=False)


def new_id(name: str, now: datetime) -> str:
    """Return a new run's id."""
    return f"{now:%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"


def shared_environment(
    site: Site, library: Library, installed: Installation, placement: Placement, tuning: Sequence[Setting]
) -> dict[str, str]:
    """Return the variables that all ranks get, with any launcher."""
    return {
        **placement.environment(),
        **site.policies.environment,
        **library.environment,
        **({} if library.prefix == str(installed.prefix) else {"MPI4PY_MPIABI": library.traits.abi}),
        **{setting.name: setting.value for setting in tuning},
    }


def _warnings(choices: Choices, partition_name: str | None, placements: Sequence[Placement]) -> Iterator[str]:
    site = choices.site
    partition = site.partition(partition_name)
    yield from choices.use.notices
    if site.status == "retired":
        yield f"site {site.name} is retired" + (f"; its successor is {site.successor}" if site.successor else "")
    if partition and partition.restricted:
        yield "access to this partition is restricted by the site"
    if choices.installation.lock and (unverified := _unverified(choices)):
        yield unverified
    if not choices.installation.lock:
        yield f"stack {choices.stack} is not installed for site {site.name}: the script shows where it would be"
    if not all(placement.bind for placement in placements):
        known = site.node_type(partition_name).cores is not None
        why = "more threads than cores on a node" if known else "the cores of a node are unknown to the site file"
        yield f"{why}: ranks are not bound, and timings say little about scaling"


def _unverified(choices: Choices) -> str | None:
    """Say that the installation was never verified with this MPI library; None if it was, or if unknown."""
    if choices.environment is not None:
        return None
    verification = choices.installation.manifest.get("verification", {})
    if verification.get("where") == "skip":
        return f"stack {choices.stack} was never verified (--verify skip)"
    with_ = (verification.get("mpi") or {}).get("name", choices.stack)
    if with_ == choices.library.name:
        return None
    return (
        f"stack {choices.stack} was verified with MPI library {with_}, never with {choices.library.name}: "
        "hidl install --verify job does"
    )


def _steps(
    started: _Started,
    sizes: Sequence[tuple[int, Placement]],
    repetitions: int,
    environment: Mapping[str, str],
    gpus: Gpus | None,
) -> tuple[Step, ...]:
    """Return the steps in the order in which they run."""
    world = started.installation.run_module("hidl_workloads.world")
    can_check = started.environment is None or started.environment.has_mpi4py

    def launch(words: tuple[str, ...], placement: Placement, number: int, variables: Mapping[str, str]) -> Launch:
        request = Request(
            placement,
            words,
            started.library,
            environment={**environment, **variables},
            forward=(
                *SET_BY_THE_SCRIPT,
                *(_MEETING_POINT if started.workload.program.directory else ()),
                *(_OF_CONDA if started.environment and started.environment.kind == "conda" else ()),
            ),
            hostfile=f"steps/{number}/hosts",
            on_one_host=started.scheduler == "local",
            through_ssh=started.scheduler == SSH,
            gpus=gpus,
        )
        launched = started.launcher.launch(request)
        return replace(launched, environment={**launched.environment, **variables})

    def step(number: int, size: int, placement: Placement, repetition: int, point: Mapping[str, Value]) -> Step:
        parameters, variables = {**started.parameters, **without_variables(point)}, compared_variables(point)
        program = started.workload.program_for(parameters)
        gpu_aware = environment.get(DEVICE) == "gpu" and gives_gpu_memory(started.workload, parameters)
        check = (*world, GPU_AWARE) if gpu_aware else world
        words = _kept(started, program, parameters, placement, gpu_aware=gpu_aware)
        apart = started.scheduler != "local"
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
            unbound=None if apart else launch(words, replace(placement, bind=False), number, variables),
        )

    # Each round starts with the next point: what is special about the first launch of a round favours none.
    points = len(started.matrix)
    planned = [
        (size, placement, round_, started.matrix[(round_ - 1 + position) % points])
        for round_ in range(1, repetitions + 1)
        for size, placement in sizes
        for position in range(points)
    ]
    return tuple(step(number, *each) for number, each in enumerate(planned, start=1))


def _sized(unit: str, placements: Sequence[Placement]) -> Iterator[tuple[int, Placement]]:
    """Yield each placement with its number of ``unit``."""
    for placement in placements:
        yield placement.nodes if unit == "nodes" else placement.ranks, placement


def can_be_copied(unit: str, placements: Sequence[Placement]) -> bool:
    """Can the smallest step run on every node at once? It must take one node, and the others more."""
    alone = [placement for placement in placements if placement.nodes == 1]
    return unit == "nodes" and len(alone) == 1 and len(placements) > 1


def _copied(launcher: Launcher, step: Step, nodes: int) -> Step:
    """Turn a step of one node into ``nodes`` copies; return any other unchanged."""
    if step.placement.nodes > 1:
        return step
    if step.launch.host_option is None:
        raise UsageError(
            f"launcher {launcher.name} cannot hold concurrent launches to a host each",
            hint="--baseline single, or another launcher",
        )
    return replace(step, copies=nodes)


def _kept(
    started: _Started, program: Program, parameters: Mapping[str, Value], placement: Placement, *, gpu_aware: bool
) -> tuple[str, ...]:
    """Return the argv of one rank, started by the module that keeps its output if a pattern searches that alone."""
    words = _words(started, program, parameters, placement, gpu_aware=gpu_aware)
    whose = ranks_kept(program.patterns)
    return words if whose is None else (*started.installation.run_module("hidl_workloads.rank_output"), whose, *words)


def _words(
    started: _Started, program: Program, parameters: Mapping[str, Value], placement: Placement, *, gpu_aware: bool
) -> tuple[str, ...]:
    """Return the argv of one rank; a Python module is started by the module that checks the world's size.

    A command that the stack provides is taken from the stack, not from PATH. One with a directory is started by the
    module that goes there and opens its standard input, one that chooses a GPU for MPI by the module that tells its
    local rank.
    """
    installation = started.installation
    if program.arguments is not None:
        sizes = dict(zip(SIZES, (placement.ranks, placement.nodes), strict=True))
        parameters = {**sizes, **parameters}
    after = arguments(program, parameters, started.workload.parameters)
    if program.module:
        starter = "hidl_workloads.world" if program.threads else "hidl_workloads.single_threaded"
        options = (CHOOSES_GPU,) if program.chooses_gpu else ()
        return (*installation.run_module(starter), *options, program.module, *after)
    first, *rest = command(program, parameters)
    of_the_stack = installation.prefix / "bin" / first
    words = (str(of_the_stack) if of_the_stack.is_file() else first, *rest, *after)
    if program.directory is None:
        return (*installation.run_module("hidl_workloads.local_rank"), *words) if gpu_aware else words
    input_ = () if started.stdin is None else (STDIN, started.stdin)
    return (*installation.run_module("hidl_workloads.own_program"), *encode([*input_, program.directory, *words]))
