"""Placement: resource sets on hosts, ranks on resource sets, cores and GPUs of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hidl_twin.batch.ranks import Task
from hidl_twin.jsrun.options import ALL, Options, fail


class DoesNotFit(Exception):
    """The requested resource sets do not fit on the hosts."""


@dataclass(frozen=True)
class Host:
    """A host of the job, with the numbers of its free cores and GPUs."""

    name: str
    cores: tuple[int, ...]
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class ResourceSet:
    """Cores and GPUs of one host, by their numbers there."""

    host: str
    cores: tuple[int, ...]
    gpus: tuple[int, ...]


def place(options: Options, sets: Sequence[ResourceSet]) -> list[Task]:
    """The ranks in their order, on the resource sets."""
    sizes = _tasks_per_set(options, len(sets))
    spots = _distribute(options, sizes)
    on_host: dict[str, int] = {}
    numbered = []
    for which, slot in spots:
        host = sets[which].host
        numbered.append((which, slot, on_host.setdefault(host, 0)))
        on_host[host] += 1
    return [
        Task(
            rank,
            sets[which].host,
            local_rank,
            on_host[sets[which].host],
            _cores(options, sets[which], slot, sizes[which]),
            sets[which].gpus,
        )
        for rank, (which, slot, local_rank) in enumerate(numbered)
    ]


def resource_sets(options: Options, hosts: Sequence[Host]) -> list[ResourceSet]:
    """The resource sets in their order, the first host's first; raises ``DoesNotFit``."""
    usable = [host for host in hosts if host.name not in options.excluded]
    if not usable:
        fail("jsrun: no host is left")
    per_host = [_sets_of(options, host) for host in usable]
    if options.rs_per_host is not None:
        for host, sets in zip(usable, per_host, strict=True):
            if len(sets) < options.rs_per_host:
                raise _does_not_fit(options, options.rs_per_host, [host])
        per_host = [sets[: options.rs_per_host] for sets in per_host]
    everything = [each for sets in per_host for each in sets]
    if options.nrs == ALL and options.rs_per_host is None:
        everything = [sets[0] for sets in per_host if sets]
    wanted = options.nrs if isinstance(options.nrs, int) else None
    if wanted is None and options.nrs is None and options.np is not None:
        wanted = -(-options.np // (options.tasks_per_rs or 1))
    if len(everything) < (wanted or 1):
        raise _does_not_fit(options, wanted or 1, usable)
    return everything[:wanted]


def _sets_of(options: Options, host: Host) -> list[ResourceSet]:
    """Fill a host with resource sets."""
    cores = max(1, len(host.cores)) if options.cpu_per_rs == ALL else int(options.cpu_per_rs)
    gpus = len(host.gpus) if options.gpu_per_rs == ALL else int(options.gpu_per_rs)
    number = min(len(host.cores) // cores, len(host.gpus) // gpus if gpus else len(host.cores))
    return [
        ResourceSet(
            host.name,
            host.cores[index * cores : (index + 1) * cores],
            host.gpus[index * gpus : (index + 1) * gpus],
        )
        for index in range(number)
    ]


def _does_not_fit(options: Options, wanted: int, hosts: Sequence[Host]) -> DoesNotFit:
    return DoesNotFit(
        f"{wanted} resource set(s) of {options.cpu_per_rs} CPUs and {options.gpu_per_rs} GPUs do not fit on "
        f"{len(hosts)} host(s) of {len(hosts[0].cores)} CPUs and {len(hosts[0].gpus)} GPUs"
    )


def _tasks_per_set(options: Options, sets: int) -> list[int]:
    """Ranks per set; fewer in the last ones if a total was requested."""
    if options.np is None:
        return [options.tasks_per_rs or 1] * sets
    each = options.tasks_per_rs or -(-options.np // sets)
    if options.np > each * sets:
        fail(f"jsrun: {options.np} tasks do not fit into {sets} resource set(s) of {each}")
    return [max(0, min(each, options.np - index * each)) for index in range(sets)]


def _distribute(options: Options, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Set of each rank in order, and the rank's index in it."""
    at_a_time = {"packed": max(sizes), "cyclic": 1, "plane": options.plane}[options.distribution]
    spots: list[tuple[int, int]] = []
    begun = [0] * len(sizes)
    while len(spots) < sum(sizes):
        for which, size in enumerate(sizes):
            for slot in range(begun[which], min(size, begun[which] + at_a_time)):
                spots.append((which, slot))
            begun[which] = min(size, begun[which] + at_a_time)
    return spots


def _cores(options: Options, of: ResourceSet, slot: int, tasks: int) -> tuple[int, ...]:
    if options.bind == "none":
        return ()
    if options.bind == "rs":
        return of.cores
    step = options.bind_cores
    if options.bind == "proportional-packed":
        step = max(1, len(of.cores) // tasks)
    wanted = range(slot * step, slot * step + options.bind_cores)
    return tuple(sorted({of.cores[index % len(of.cores)] for index in wanted}))
