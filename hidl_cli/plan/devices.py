"""What a run computes on, processors or GPUs: chosen before anything is submitted, or refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hidl_cli.batch_systems import SSH
from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.launch.hosts import WITHOUT_HOSTS
from hidl_cli.launch.library import launcher_for, library_for, without_launcher
from hidl_cli.launch.placement import Asked
from hidl_cli.mpi import Library
from hidl_cli.plan.parameters import format_parameters
from hidl_cli.plan.workload import DeviceChoice, Value, Workload, holds
from hidl_cli.schedulers import unusable
from hidl_cli.site.schema import NodeType, Site
from hidl_cli.stack import target as of_stack
from hidl_cli.stack.schema import Device, Stack

#: The MPI libraries that stacks bring along, by the stack that holds nothing else.
_OF_STACKS = (Library("mpi", "mpich"), Library("openmpi", "openmpi"))


def reason_not_runnable(site: Site) -> str | None:
    """Return why no job script can be rendered for the site; None if one can.

    Checks its scheduler, then its launchers for the site's default MPI library, else for those of the stacks.
    """
    if site.scheduler == SSH and site.node_type().hosts is None:
        return WITHOUT_HOSTS
    reasons = [without_launcher(site, library) for library in _libraries(site)]
    return unusable(site) or (None if None in reasons else reasons[0])


def default_launcher(site: Site) -> str:
    """Return the launcher that runs use by default; the site must be runnable."""
    return next(launcher_for(site, each, None) for each in _libraries(site) if without_launcher(site, each) is None)


def _libraries(site: Site) -> list[Library]:
    return [library_for(site, own, None) for own in _OF_STACKS]


#: The variable that tells each rank what to compute on.
DEVICE = "HIDL_DEVICE"
#: How many GPUs each rank has.
GPUS_PER_RANK = "HIDL_GPUS_PER_RANK"


#: What a workload that does not say it may compute on.
_ANY = (DeviceChoice(device="cpu"), DeviceChoice(device="gpu"))


class NoGpuUse(UsageError):
    """The nodes have GPUs, and the workload computes on processors only."""


class NoGpuStack(MissingPrecondition):
    """The run computes on GPUs, and its stack or environment does not."""


@dataclass(frozen=True)
class DeviceUse:
    """What the run computes on, with which request to the scheduler.

    ``packages``: of the stack that the device requires. ``either``: the workload computes on the other device too.
    ``notices``: sentences for the user.
    """

    device: Device
    asked: Asked
    packages: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    either: bool = False


def choose_device(
    site: Site, workload: Workload, points: Sequence[Mapping[str, Value]], asked: Asked, wanted: Device | None
) -> DeviceUse:
    """Choose the device of a run: as ``wanted``, else GPUs if the nodes have some.

    ``points``: the values of all parameters, for each point of the matrix. If no partition is asked for and the nodes
    of the default one do not fit ``wanted``, it is the first whose nodes do. Raises ``UsageError`` if the workload or
    the nodes do not allow the device, and ``NoGpuUse`` if the user must say that GPUs stay unused.
    """
    possible = _possible(workload, points)
    use = _choose(site, workload, points, asked, wanted=wanted, possible=tuple(possible))
    return replace(use, packages=possible[use.device], either=len(possible) > 1)


def _choose(
    site: Site,
    workload: Workload,
    points: Sequence[Mapping[str, Value]],
    asked: Asked,
    *,
    wanted: Device | None,
    possible: tuple[Device, ...],
) -> DeviceUse:
    if wanted is not None and wanted not in possible:
        raise UsageError(_only(workload, points, possible[0]), hint=f"--device {possible[0]}")
    here = has_gpus(site.node_type(asked.partition))
    if wanted is not None:
        return _as_wanted(site, wanted, asked)
    if not here:
        if "cpu" in possible:
            return DeviceUse("cpu", asked)
        if site.node_type(asked.partition).gpus is None:  # unknown: the job looks for them
            return DeviceUse("gpu", asked)
        elsewhere = site.partition_with("gpu")
        raise UsageError(
            f"{_only(workload, points, 'gpu')}, and {_nodes(site, asked)} have none",
            hint=f"--device gpu takes partition {elsewhere}" if elsewhere else "another --site",
        )
    if "gpu" in possible:
        unsaid = f"{workload.name} does not say what it computes on: GPUs are requested; --device cpu requests none"
        return DeviceUse("gpu", asked, notices=(unsaid,) if _is_unsaid(workload) else ())
    if workload.any_node:
        notice = f"{workload.name} runs on the processors of {_nodes(site, asked)}: no GPUs are requested"
        return DeviceUse("cpu", replace(asked, gpus=False), notices=(notice,))
    elsewhere = site.partition_with("cpu") if asked.partition is None else None
    raise NoGpuUse(
        f"{_only(workload, points, 'cpu')}, and {_nodes(site, asked)} have GPUs, which would stay unused",
        hint="--device cpu" + (f" (partition {elsewhere})" if elsewhere else " requests no GPUs"),
    )


def require_stack(
    use: DeviceUse,
    name: str,
    stack: Stack,
    installed: Mapping[str, str],
    *,
    site: Site,
    accelerator: str | None = None,
    environment: str | None = None,
) -> None:
    """Raise ``NoGpuStack`` if the run computes on GPUs and its stack does not.

    ``name``: the workload's. ``installed``: versions of the packages by name; empty if it is not installed.
    ``accelerator``: what it was installed for; None: unknown. ``environment``: the directory of the user's own, in the
    place of the stack.
    """
    if use.device == "cpu":
        return
    node = site.node_type(use.asked.partition)
    reason = of_stack.reason_without_gpu(stack, installed, use.packages, node, accelerator=accelerator)
    if reason is None:
        return
    whose = f"environment {environment}" if environment else f"stack {stack.name}"
    install = None if environment else of_stack.install_hint(stack, use.packages, site, node)
    fixes = [install or "--env DIR with an environment that does", *(["--device cpu"] if use.either else [])]
    raise NoGpuStack(f"{name} is to compute on GPUs, and {whose} does not: {reason}", hint="; or ".join(fixes))


def gives_gpu_memory(workload: Workload, parameters: Mapping[str, Value]) -> bool:
    """On GPUs, does the workload's program give MPI the addresses of GPU memory, without looking whether it may?"""
    choice = _holding(workload.devices or (), parameters).get("gpu")
    return choice is not None and choice.gpu_aware


def has_gpus(node: NodeType) -> bool:
    """Are nodes of this type known to have GPUs? Without their number, none can be requested."""
    return bool(node.gpus)


def _possible(workload: Workload, points: Sequence[Mapping[str, Value]]) -> dict[Device, tuple[str, ...]]:
    """Return the devices that serve all points, with the packages that each requires; ``UsageError`` if none does."""
    of_points = [_holding(workload.devices or _ANY, point) for point in points]
    found = {
        device: tuple(dict.fromkeys(name for choices in of_points for name in choices[device].packages))
        for device in of_points[0]
        if all(device in choices for choices in of_points)
    }
    if not found:
        several = len(points) > 1
        what = "points of the matrix compute on different devices" if several else "no device for these parameters"
        raise UsageError(
            f"{workload.name}: {what}",
            hint="a run for each device" if several else f"hidl workload show {workload.name}",
        )
    return found


def _holding(choices: Sequence[DeviceChoice], point: Mapping[str, Value]) -> dict[Device, DeviceChoice]:
    """Return the choices that hold for these parameters, by device: those with conditions before those without."""
    conditional = {choice.device: choice for choice in choices if choice.when and holds(choice.when, point)}
    return conditional or {choice.device: choice for choice in choices if not choice.when}


def _as_wanted(site: Site, wanted: Device, asked: Asked) -> DeviceUse:
    node = site.node_type(asked.partition)
    notices: tuple[str, ...] = ()
    fits = node.gpus is None or has_gpus(node) == (wanted == "gpu")
    if asked.partition is None and not fits and (other := site.partition_with(wanted)):
        notices = (f"--device {wanted}: partition {other}, and not {site.default_partition}",)
        asked = replace(asked, partition=other)
        node = site.node_type(other)
    if wanted == "gpu" and node.gpus == 0:
        raise UsageError(
            f"--device gpu: {_nodes(site, asked)} have no GPUs", hint="--device cpu, or another --partition or --site"
        )
    return DeviceUse(wanted, replace(asked, gpus=wanted == "gpu"), notices=notices)


def _is_unsaid(workload: Workload) -> bool:
    return workload.devices is None and workload.program.directory is None and bool(workload.program.module)


def _only(workload: Workload, points: Sequence[Mapping[str, Value]], device: Device) -> str:
    """Say that the workload computes on ``device`` alone, with the parameters that make it so."""
    what = {"cpu": "processors", "gpu": "GPUs"}[device]
    conditions = [choice.when for choice in workload.devices or () if choice.when]
    of_this: dict[str, Value] = {}
    if len(points) == 1 and conditions:
        met = [set(when) for when in conditions if any(holds({name: when[name]}, points[0]) for name in when)]
        names = set.union(*met) if met else set.intersection(*map(set, conditions))
        of_this = {name: value for name, value in points[0].items() if name in names}
    shown = f" with {format_parameters(of_this)}" if of_this else ""
    return f"{workload.name}{shown} computes on {what} only"


def _nodes(site: Site, asked: Asked) -> str:
    partition = asked.partition or site.default_partition
    of = f"partition {partition} of " if partition and site.scheduler != "local" else ""
    return f"the nodes of {of}site {site.name}"
