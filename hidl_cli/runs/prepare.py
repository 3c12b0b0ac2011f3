"""From the words of ``hidl run`` to a launch plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hidl_cli.errors import UsageError
from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.placement import Size, place
from hidl_cli.runs.load import load_workload
from hidl_cli.runs.parameters import resolve
from hidl_cli.runs.plan import Plan, make_plan, stack_for
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation


@dataclass(frozen=True)
class Request:
    """What ``hidl run`` was asked for; None: the default. ``time_limit`` is in seconds."""

    workload: str
    site: str | None = None
    nodes: int = 1
    ranks_per_node: int | None = None
    threads: int | None = None
    assignments: Sequence[str] = ()
    scale: str | None = None
    repeat: int | None = None
    target: float | None = None
    launcher: str | None = None
    partition: str | None = None
    prefix: str | None = None
    time_limit: float | None = None


def prepare(request: Request) -> Plan:
    """Resolve a request; nothing is touched.

    Raises what is wrong with it: ``UsageError``, ``InvalidInput``, ``SubmitRefused``, or ``MissingPrecondition`` where
    the stack is not installed.
    """
    site = load_site(request.site)
    workload = load_workload(request.workload)
    parameters = resolve(workload, request.assignments)
    name = request.launcher or site.launchers[0]
    if name not in site.launchers:
        raise UsageError(f"site {site.name} has no launcher {name!r}", hint=f"it has: {', '.join(site.launchers)}")
    per_node = request.ranks_per_node or site.node_type(request.partition).gpus or None
    unit, sizes = _sizes(request, site, per_node)
    if request.scale and workload.scaling is None:
        raise UsageError(
            f"workload {workload.name} does not say how it scales", hint="leave --scale out, or add `scaling` to it"
        )
    placements = place(site, [size for _, size in sizes], partition=request.partition, threads=request.threads)
    stack = stack_for(workload, parameters)
    return make_plan(
        site=site,
        workload=workload,
        stack=stack,
        installation=installation.find(site, stack, root=installation.root(site, request.prefix)),
        launcher=launcher(name),
        parameters=parameters,
        unit=unit,
        sizes=[(step, placement) for (step, _), placement in zip(sizes, placements, strict=True)],
        repetitions=request.repeat or (5 if request.scale else 1),
        partition=request.partition,
        target=request.target or (workload.scaling.target if workload.scaling else None),
        time_limit=request.time_limit,
    )


def _sizes(request: Request, site: Site, per_node: int | None) -> tuple[str, list[tuple[int, Size]]]:
    """What is counted (``ranks`` or ``nodes``), and each step's number of them with its size, the smallest first."""
    if request.scale is None:
        size = Size.of_nodes(request.nodes, per_node or 1)
        return "ranks", [(size.ranks, size)]
    if request.nodes != 1:
        raise UsageError("--scale and --nodes exclude each other", hint="the steps of --scale say how many nodes")
    unit, numbers = parse_scale(request.scale, default_unit="ranks" if site.scheduler == "local" else "nodes")
    if unit == "ranks":
        return unit, [(number, Size.of_ranks(number, request.ranks_per_node)) for number in numbers]
    return unit, [(number, Size.of_nodes(number, per_node or 1)) for number in numbers]


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
