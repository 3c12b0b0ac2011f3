"""Choose the device of a run, CPUs or GPUs, before anything is submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hidl_cli.batch_systems import SSH
from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.launch.hosts import WITHOUT_HOSTS
from hidl_cli.launch.library import launcher_for, library_for, without_launcher
from hidl_cli.launch.options import AllocationOptions
from hidl_cli.mpi import Library
from hidl_cli.plan.parameters import format_parameters
from hidl_cli.plan.workload import DeviceChoice, Value, Workload, holds
from hidl_cli.schedulers import unusable
from hidl_cli.site.schema import NodeType, Site
from hidl_cli.stack.schema import Device, Stack

#: The MPI libraries that stacks provide, each named after the stack that contains only this library.
_STACK_LIBRARIES = (Library("mpi", "mpich"), Library("openmpi", "openmpi"))


def reason_not_runnable(site: Site) -> str | None:
    """Return the reason why the site cannot run jobs, or None if it can.

    The check covers the scheduler and the launchers. A launcher must support the site's default MPI library or, if the
    site has no default, the MPI library of a stack.
    """
    if site.scheduler == SSH and site.node_type().hosts is None:
        return WITHOUT_HOSTS
    reasons = [without_launcher(site, library) for library in _libraries(site)]
    return unusable(site) or (None if None in reasons else reasons[0])


def default_launcher(site: Site) -> str:
    """Return the default launcher of a site on which jobs can run."""
    return next(launcher_for(site, each, None) for each in _libraries(site) if without_launcher(site, each) is None)


def _libraries(site: Site) -> list[Library]:
    return [library_for(site, own, None) for own in _STACK_LIBRARIES]


#: Environment variable that contains the device on which ranks compute.
DEVICE = "HIDL_DEVICE"
#: Environment variable that contains the number of GPUs per rank.
GPUS_PER_RANK = "HIDL_GPUS_PER_RANK"


#: The devices of a workload without `devices`.
_ANY = (DeviceChoice(device="cpu"), DeviceChoice(device="gpu"))


class NoGpuUse(UsageError):
    """The nodes have GPUs, but the workload computes on CPUs only."""


class NoGpuStack(MissingPrecondition):
    """The run computes on GPUs, but its stack or environment does not support them."""


@dataclass(frozen=True)
class DeviceUse:
    """The device of a run.

    Attributes:
        device: Device on which the ranks compute.
        partition: Partition to run on; None selects the site's default.
        gpus_per_node: GPUs to request per node. None requests all of them, and 0 requests none.
        packages: Packages that the device requires in the stack.
        notices: Messages for the user.
        either: Whether the workload supports both CPUs and GPUs.
    """

    device: Device
    partition: str | None = None
    gpus_per_node: int | None = None
    packages: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    either: bool = False


def choose_device(
    site: Site,
    workload: Workload,
    points: Sequence[Mapping[str, Value]],
    options: AllocationOptions,
    wanted: Device | None,
) -> DeviceUse:
    """Choose the device of a run (default: GPUs if the nodes have any).

    If no partition is requested and the nodes of the default partition lack the requested device, the first partition
    whose nodes have it is used.

    Args:
        site: Site of the run.
        workload: Workload of the run.
        points: Values of all parameters for each point of the matrix.
        options: Job options.
        wanted: Requested device; None selects the default.

    Raises:
        UsageError: The workload or the nodes do not support the device.
        NoGpuUse: The GPUs of the nodes would remain unused, and the user has not confirmed that.
    """
    possible = _possible(workload, points)
    use = _choose(site, workload, points, options, wanted=wanted, possible=tuple(possible))
    return replace(use, packages=possible[use.device], either=len(possible) > 1)


def _choose(
    site: Site,
    workload: Workload,
    points: Sequence[Mapping[str, Value]],
    options: AllocationOptions,
    *,
    wanted: Device | None,
    possible: tuple[Device, ...],
) -> DeviceUse:
    if wanted is not None and wanted not in possible:
        raise UsageError(_only(workload, points, possible[0]), hint=f"use --device {possible[0]}")
    here = has_gpus(site.node_type(options.partition))
    if wanted is not None:
        return _as_wanted(site, wanted, options)
    if not here:
        if "cpu" in possible:
            return DeviceUse("cpu", options.partition, options.gpus_per_node)
        if site.node_type(options.partition).gpus is None:  # unknown: the job detects them
            return DeviceUse("gpu", options.partition, options.gpus_per_node)
        elsewhere = site.partition_with("gpu")
        raise UsageError(
            f"{_only(workload, points, 'gpu')}, but {_nodes(site, options)} have none",
            hint=f"use --device gpu, which selects partition {elsewhere}" if elsewhere else "choose another --site",
        )
    if "gpu" in possible:
        notice = (
            f"GPUs are requested because {workload.name} does not declare its devices; use --device cpu to request none"
        )
        return DeviceUse(
            "gpu", options.partition, options.gpus_per_node, notices=(notice,) if _is_undeclared(workload) else ()
        )
    if workload.any_node:
        notice = f"{workload.name} runs on the CPUs of {_nodes(site, options)}: no GPUs are requested"
        return DeviceUse("cpu", options.partition, 0, notices=(notice,))
    elsewhere = site.partition_with("cpu") if options.partition is None else None
    raise NoGpuUse(
        f"{_only(workload, points, 'cpu')}, but {_nodes(site, options)} have GPUs, which would stay unused",
        hint="use --device cpu" + (f" (partition {elsewhere})" if elsewhere else ", which requests no GPUs"),
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
    """Raise ``NoGpuStack`` if the run computes on GPUs but its stack does not support them.

    Args:
        use: Device of the run.
        name: Name of the workload.
        stack: Stack of the run.
        installed: Versions of the installed packages by name; empty if the stack is not installed.
        site: Site of the run.
        accelerator: Accelerator for which the stack was installed, or None if unknown.
        environment: Directory of the user's environment that replaces the stack.
    """
    if use.device == "cpu":
        return
    from hidl_cli.stack.target import install_hint, reason_without_gpu  # not loaded for runs on CPUs

    node = site.node_type(use.partition)
    reason = reason_without_gpu(stack, installed, use.packages, node, accelerator=accelerator)
    if reason is None:
        return
    whose = f"environment {environment}" if environment else f"stack {stack.name}"
    install = None if environment else install_hint(stack, use.packages, site, node)
    fixes = [
        install or "use --env DIR with an environment that supports GPUs",
        *(["use --device cpu"] if use.either else []),
    ]
    raise NoGpuStack(f"{name} should compute on GPUs, but {whose} cannot: {reason}", hint="; or ".join(fixes))


def gives_gpu_memory(workload: Workload, parameters: Mapping[str, Value]) -> bool:
    """Return whether the program, when it uses GPUs, passes GPU addresses to MPI without checking for support."""
    choice = _holding(workload.devices or (), parameters).get("gpu")
    return choice is not None and choice.gpu_aware


def has_gpus(node: NodeType) -> bool:
    """Return whether the node is known to have GPUs; if their number is unknown, none can be requested."""
    return bool(node.gpus)


def _possible(workload: Workload, points: Sequence[Mapping[str, Value]]) -> dict[Device, tuple[str, ...]]:
    """Return the devices that all points support, with the packages that each device requires.

    Raises ``UsageError`` if there are none.
    """
    of_points = [_holding(workload.devices or _ANY, point) for point in points]
    found = {
        device: tuple(dict.fromkeys(name for choices in of_points for name in choices[device].packages))
        for device in of_points[0]
        if all(device in choices for choices in of_points)
    }
    if not found:
        several = len(points) > 1
        what = "points of the matrix compute on different devices" if several else "no device supports these parameters"
        raise UsageError(
            f"{workload.name}: {what}",
            hint="start a run for each device"
            if several
            else f"to list its devices, run: hidl workload show {workload.name}",
        )
    return found


def _holding(choices: Sequence[DeviceChoice], point: Mapping[str, Value]) -> dict[Device, DeviceChoice]:
    """Return the device choices for a point, by device: those whose condition holds, or else the unconditional ones."""
    conditional = {choice.device: choice for choice in choices if choice.when and holds(choice.when, point)}
    return conditional or {choice.device: choice for choice in choices if not choice.when}


def _as_wanted(site: Site, wanted: Device, options: AllocationOptions) -> DeviceUse:
    node = site.node_type(options.partition)
    notices: tuple[str, ...] = ()
    fits = node.gpus is None or has_gpus(node) == (wanted == "gpu")
    if options.partition is None and not fits and (other := site.partition_with(wanted)):
        notices = (f"--device {wanted} selects partition {other} instead of {site.default_partition}",)
        options = replace(options, partition=other)
        node = site.node_type(other)
    if wanted == "gpu" and node.gpus == 0:
        raise UsageError(
            f"--device gpu: {_nodes(site, options)} have no GPUs",
            hint="use --device cpu, or choose another --partition or --site",
        )
    gpus = options.gpus_per_node if wanted == "gpu" else 0
    return DeviceUse(wanted, options.partition, gpus, notices=notices)


def _is_undeclared(workload: Workload) -> bool:
    return workload.devices is None and workload.program.directory is None and bool(workload.program.module)


def _only(workload: Workload, points: Sequence[Mapping[str, Value]], device: Device) -> str:
    """State that the workload computes only on ``device``, and name the parameters that cause this restriction."""
    what = {"cpu": "CPUs", "gpu": "GPUs"}[device]
    conditions = [choice.when for choice in workload.devices or () if choice.when]
    causes: dict[str, Value] = {}
    if len(points) == 1 and conditions:
        met = [set(when) for when in conditions if any(holds({name: when[name]}, points[0]) for name in when)]
        names = set.union(*met) if met else set.intersection(*map(set, conditions))
        causes = {name: value for name, value in points[0].items() if name in names}
    shown = f" with {format_parameters(causes)}" if causes else ""
    return f"{workload.name}{shown} computes on {what} only"


def _nodes(site: Site, options: AllocationOptions) -> str:
    partition = options.partition or site.default_partition
    of = f"partition {partition} of " if partition and site.scheduler != "local" else ""
    return f"the nodes of {of}site {site.name}"
