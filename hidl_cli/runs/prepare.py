"""From the words of ``hidl run`` to a launch plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hidl_cli.errors import InvalidInput, MissingPrecondition, UsageError
from hidl_cli.inputs.findings import Finding
from hidl_cli.launch.allocation import Asked
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.library import launcher_for, library_for
from hidl_cli.launch.placement import Placement, Size, place
from hidl_cli.mpi import Library
from hidl_cli.runs.load import load_workload
from hidl_cli.runs.parameters import points, resolve
from hidl_cli.runs.plan import Baseline, Plan
from hidl_cli.runs.planning import Choices, can_be_copied, make_plan
from hidl_cli.runs.workload import Value, Workload, holds
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.load import load_stack
from hidl_cli.stack.schema import Stack
from hidl_cli.tuning.layers import Layer, Setting, effective


@dataclass(frozen=True)
class Request:
    """What ``hidl run`` was asked for; None: the default.

    ``assignments`` (``--set``) and ``tuning`` (``--mv2``) are words of the form ``NAME=VALUE``, ``matrix`` of the form
    ``NAME=VALUE,VALUE``. ``hypothetical``: the plan is only looked at, so that the stack need not be installed.
    """

    workload: str
    site: str | None = None
    nodes: int = 1
    ranks_per_node: int | None = None
    threads: int | None = None
    assignments: Sequence[str] = ()
    tuning: Sequence[str] = ()
    matrix: Sequence[str] = ()
    stack: str | None = None
    scale: str | None = None
    repeat: int | None = None
    target: float | None = None
    baseline: Baseline | None = None
    until_settled: bool = False
    launcher: str | None = None
    mpi: str | None = None
    prefix: str | None = None
    asked: Asked = field(default_factory=Asked)
    hypothetical: bool = False


def prepare(request: Request, site: Site | None = None) -> Plan:
    """Resolve a request; nothing is touched. ``site``: the request's, where it is loaded already.

    Raises what is wrong with it: ``UsageError``, ``InvalidInput``, ``SubmitRefused``, or ``MissingPrecondition`` where
    the stack is not installed.
    """
    site = site or load_site(request.site)
    workload = load_workload(request.workload)
    if request.scale and workload.scaling is None:
        raise UsageError(
            f"workload {workload.name} does not say how it scales", hint="leave --scale out, or add `scaling` to it"
        )
    if request.scale and request.matrix:
        raise UsageError(
            "--scale and --matrix exclude each other", hint="compare at one size, and then see how the best one scales"
        )
    least = workload.needed_ranks
    unit, sizes = _sizes(request, site, least)
    if min(placement.ranks for _, placement in sizes) < least:
        idle = f": {workload.overhead_ranks} of them do not compute" if workload.overhead_ranks else ""
        raise UsageError(
            f"workload {workload.name} needs {least} ranks or more{idle}",
            hint=f"--ranks-per-node {least}, or a --scale that begins with {least} ranks",
        )
    if request.baseline == "copies" and not can_be_copied(unit, sizes):
        raise UsageError("--baseline copies needs a study of nodes that begins with 1", hint="--scale nodes=1,2,4")
    choices = _choices(request, site, workload)
    plan = make_plan(
        choices,
        unit=unit,
        sizes=sizes,
        repetitions=request.repeat or (5 if request.scale or request.matrix else 1),
        asked=request.asked,
        target=request.target or (workload.scaling.target if workload.scaling else None),
        baseline=request.baseline,
        until_settled=request.until_settled and request.scale is not None,
    )
    if plan.missing and not request.hypothetical:
        raise UsageError(f"site {site.name} demands {' and '.join(plan.missing)}", hint=f"{plan.missing[0]} NAME")
    return plan


def _choices(request: Request, site: Site, workload: Workload) -> Choices:
    parameters = resolve(workload, request.assignments)
    matrix = points(workload, request.matrix)
    stack = load_stack(request.stack or stack_for(workload, *({**parameters, **point} for point in matrix)))
    installed = _installation(request, site, stack.name)
    library = library_for(site, own_library(installed, stack), request.mpi)
    return Choices(
        site=site,
        workload=workload,
        parameters=parameters,
        stack=stack.name,
        installation=installed,
        library=library,
        launcher=launcher(launcher_for(site, library, request.launcher)),
        tuning=_tuning(request, site, stack, workload, library),
        matrix=matrix,
    )


def own_library(installed: Installation, stack: Stack) -> Library:
    """The MPI library that the installation brings along."""
    family, version = installed.mpi or (stack.mpi, installed.version_of(stack.mpi))
    return Library(stack.name, family, version=version, prefix=str(installed.prefix))


def stack_for(workload: Workload, *parameters: Mapping[str, Value]) -> str:
    """The first stack of the workload whose conditions all of ``parameters`` meet; ``InvalidInput`` where none is."""
    for choice in workload.stacks:
        if all(holds(choice.when, each) for each in parameters):
            return choice.stack
    raise InvalidInput(
        f"no stack of workload {workload.name} serves these parameters", hint="see its `stacks`, or name one: --stack"
    )


def _installation(request: Request, site: Site, stack: str) -> Installation:
    root = installation.root(site, request.prefix)
    try:
        return installation.find(site, stack, root=root)
    except MissingPrecondition:
        if not request.hypothetical:
            raise
        return Installation.at(root / site.name / stack / installation.CURRENT)


def _tuning(request: Request, site: Site, stack: Stack, workload: Workload, library: Library) -> tuple[Setting, ...]:
    """The effective tuning: the site's, the stack's, the workload's, the command line's, each over those before."""
    of_the_site = site.mpi[library.name].tuning if library.name in site.mpi else {}
    layers = (
        Layer(f"site {site.name}", of_the_site),
        Layer(f"stack {stack.name}", stack.tuning.get(library.family, {})),
        Layer(f"workload {workload.name}", workload.tuning.get(library.family, {})),
        Layer("command line", _assignments(request.tuning)),
    )
    return effective(library, layers, gpus=bool(site.node_type(request.asked.partition).gpus))


def _assignments(words: Sequence[str]) -> dict[str, str]:
    """Read ``NAME=VALUE`` words; ``InvalidInput`` with all that are none."""
    faults = [Finding(f"--mv2 {word!r} has no '='", "NAME=VALUE") for word in words if "=" not in word]
    if faults:
        raise InvalidInput(f"{len(faults)} value(s) of --mv2 are not understood", findings=faults)
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _sizes(request: Request, site: Site, least: int) -> tuple[str, list[tuple[int, Placement]]]:
    """What is counted (``ranks`` or ``nodes``), and each step's number of them with its placement, smallest first.

    Where nobody says how many ranks a node has: one for each GPU, else 1, and ``least`` ranks in all.
    """

    def per_node(nodes: int) -> int:
        gpus = site.node_type(request.asked.partition).gpus
        return request.ranks_per_node or max(gpus or 1, -(-least // nodes))

    if request.scale is None:
        size = Size.of_nodes(request.nodes, per_node(request.nodes))
        unit, counted = "ranks", [(size.ranks, size)]
    else:
        if request.nodes != 1:
            raise UsageError("--scale and --nodes exclude each other", hint="the steps of --scale say how many nodes")
        unit, numbers = parse_scale(request.scale, default_unit="ranks" if site.scheduler == "local" else "nodes")
        if unit == "ranks":
            counted = [(number, Size.of_ranks(number, request.ranks_per_node)) for number in numbers]
        else:
            counted = [(number, Size.of_nodes(number, per_node(min(numbers)))) for number in numbers]
    sizes = [size for _, size in counted]
    placements = place(site, sizes, partition=request.asked.partition, threads=request.threads)
    return unit, [(number, placement) for (number, _), placement in zip(counted, placements, strict=True)]


def parse_scale(text: str, *, default_unit: str) -> tuple[str, list[int]]:
    """Read ``1,2,4``, ``ranks=1,2`` or ``nodes=1,2``; ``UsageError`` where it is none of these."""
    unit, equals, numbers = text.rpartition("=")
    words = numbers.split(",")
    if (equals and unit not in ("ranks", "nodes")) or not all(word.strip().isdecimal() for word in words):
        raise UsageError(f"--scale {text!r} is not understood", hint="for example --scale 1,2,4 or --scale ranks=1,2,4")
    sizes = [int(word) for word in words]
    if 0 in sizes or len(set(sizes)) < 2 or len(set(sizes)) < len(sizes):
        raise UsageError(
            f"--scale {text!r} needs two or more different sizes, each at least 1",
            hint="without --scale, a single size is run",
        )
    return unit or default_unit, sorted(sizes)
