"""Making the launch plan: every choice is made by now, and is written down as one value."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from hidl_cli.errors import InvalidInput, UsageError
from hidl_cli.launch.allocation import Asked, allocate, missing
from hidl_cli.launch.launchers import Launcher
from hidl_cli.launch.launchers.contract import Launch, Request
from hidl_cli.launch.library import abi
from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Library
from hidl_cli.runs.plan import Baseline, Plan, Step
from hidl_cli.runs.words import arguments, command
from hidl_cli.runs.workload import Program, Value, Workload
from hidl_cli.schedulers import scheduler
from hidl_cli.site.schema import Partition, Site
from hidl_cli.stack.installation import Installation
from hidl_cli.tuning.layers import Setting

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
)


_MANY_NODES = 4  # from here on, measuring one node while the others idle costs too much


@dataclass(frozen=True)
class Choices:
    """What a plan is made of: where, what, on which MPI library, started by whom, tuned how.

    ``matrix``: the points that are compared, as the parameters that differ; by default the one that has none.
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


def make_plan(
    choices: Choices,
    *,
    unit: str,
    sizes: Sequence[tuple[int, Placement]],
    repetitions: int,
    asked: Asked,
    target: float | None = None,
    baseline: Baseline | None = None,
    until_settled: bool = False,
) -> Plan:
    """Resolve a run: the steps are sizes and points in turn, interleaved as often as there are repetitions.

    Where no baseline is asked for, a study of 1 to 4 nodes or more is held against copies, if the launcher can start
    them, and any other against its smallest step.

    Raises ``InvalidInput`` for a site that does not say its scheduler, and what ``allocate`` and the launcher raise.
    """
    site, workload, library = choices.site, choices.workload, choices.library
    if site.scheduler is None:
        raise InvalidInput(f"the file of site {site.name} does not say its scheduler", hint="`scheduler` in its file")
    placements = [placement for _, placement in sizes]
    allocation = allocate(site, f"hidl-{workload.name}", placements, asked)
    partition = site.partition(asked.partition)
    environment = shared_environment(site, library, choices.installation, placements[0], choices.tuning)
    steps = _steps(choices, sizes, repetitions, environment, asked.partition)
    if baseline is None:
        large = can_be_copied(unit, sizes) and allocation.nodes >= _MANY_NODES
        baseline = "copies" if large and steps[0].launch.host_option is not None else "single"
    if baseline == "copies":
        steps = tuple(_copied(choices.launcher, step, allocation.nodes) for step in steps)
    now = datetime.now(timezone.utc)
    return Plan(
        run=new_id(workload.name, now),
        created=now.isoformat(timespec="seconds"),
        site=site.name,
        scheduler=site.scheduler,
        launcher=choices.launcher.name,
        partition=asked.partition or site.default_partition,
        allocation=allocation,
        header=scheduler(site.scheduler).header(allocation, site.policies),
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
        charge=partition.charge if partition else None,
        missing=tuple(missing(site.policies, allocation)),
        warnings=tuple(_warnings(choices, partition, placements)),
    )


def new_id(name: str, now: datetime) -> str:
    """The id of a new run of the workload of that name."""
    return f"{now:%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"


def shared_environment(
    site: Site, library: Library, installed: Installation, placement: Placement, tuning: Sequence[Setting]
) -> dict[str, str]:
    """The variables that all ranks get, whatever starts them."""
    return {
        **placement.environment(),
        **site.policies.environment,
        **library.environment,
        **({} if library.prefix == str(installed.prefix) else {"MPI4PY_MPIABI": abi(library)}),
        **{setting.name: setting.value for setting in tuning},
    }


def _warnings(choices: Choices, partition: Partition | None, placements: Sequence[Placement]) -> Iterator[str]:
    site = choices.site
    if site.status == "retired":
        yield f"site {site.name} is retired" + (f"; {site.successor} took its place" if site.successor else "")
    if partition and partition.restricted:
        yield "this partition is open to those only whom the site has admitted"
    if not choices.installation.lock:
        yield f"stack {choices.stack} is not installed for site {site.name}: the script shows where it would be"
    if not all(placement.bind for placement in placements):
        yield "more ranks x threads than known cores: ranks are not bound, and times tell little about scaling"


def _steps(
    choices: Choices,
    sizes: Sequence[tuple[int, Placement]],
    repetitions: int,
    environment: Mapping[str, str],
    partition: str | None,
) -> tuple[Step, ...]:
    """The steps in the order in which they run."""
    check = (str(choices.installation.python), "-m", "hidl_workloads.world")
    gpus = choices.site.node_type(partition).gpus

    def launch(words: tuple[str, ...], placement: Placement, number: int) -> Launch:
        request = Request(
            placement,
            words,
            choices.library,
            environment=environment,
            forward=SET_BY_THE_SCRIPT,
            hostfile=f"steps/{number}/hosts",
            on_one_host=choices.site.scheduler == "local",
            gpus_per_rank=max(1, gpus // placement.ranks_per_node) if gpus else None,
        )
        return choices.launcher.launch(request)

    def step(number: int, size: int, placement: Placement, repetition: int, point: Mapping[str, Value]) -> Step:
        parameters = {**choices.parameters, **point}
        program = choices.workload.program_for(parameters)
        return Step(
            size,
            repetition,
            placement,
            launch(_words(program, choices.installation, parameters), placement, number),
            None if program.module else launch(check, placement, number),
            point=point,
            parser=program.parser,
        )

    planned = [
        (size, placement, round_, point)
        for round_ in range(1, repetitions + 1)
        for size, placement in sizes
        for point in choices.matrix
    ]
    return tuple(step(number, *each) for number, each in enumerate(planned, start=1))


def can_be_copied(unit: str, sizes: Sequence[tuple[int, Placement]]) -> bool:
    """Can the smallest step of a study be run on every node at once? It must be one node, and others larger."""
    alone = [placement for _, placement in sizes if placement.nodes == 1]
    return unit == "nodes" and len(alone) == 1 and len(sizes) > 1


def _copied(launcher: Launcher, step: Step, nodes: int) -> Step:
    """A step of one node as so many copies; any other as it is."""
    if step.placement.nodes > 1:
        return step
    if step.launch.host_option is None:
        raise UsageError(
            f"launcher {launcher.name} cannot be told where each of several launches at once is to run",
            hint="--baseline single, or another launcher",
        )
    return replace(step, copies=nodes)


def _words(program: Program, installation: Installation, parameters: Mapping[str, Value]) -> tuple[str, ...]:
    """The argv of one rank; a Python module is run by the module that checks the world's size first.

    A command that the stack has is the stack's, whatever else is on PATH.
    """
    if program.module:
        starter = "hidl_workloads.world" if program.threads else "hidl_workloads.single_threaded"
        return (str(installation.python), "-m", starter, program.module, *arguments(program, parameters))
    first, *rest = command(program, parameters)
    of_the_stack = installation.prefix / "bin" / first
    return (str(of_the_stack) if of_the_stack.is_file() else first, *rest, *arguments(program, parameters))
