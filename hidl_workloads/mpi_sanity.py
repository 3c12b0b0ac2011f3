"""Is MPI whole: ``python -m hidl_workloads.world hidl_workloads.mpi_sanity --cores=2 --ranks_per_node=4``.

The world's size is right (the module ``world`` looks at it first), each process maps one MPI library, which is the
same on all ranks, sums over all ranks are exact, and each rank is bound to cores of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from mpi4py import MPI

from hidl_workloads import metrics, mpi_library
from hidl_workloads.findings import Check
from hidl_workloads.metrics import Metric
from hidl_workloads.verify import check_allreduce, check_one_library, merge
from hidl_workloads.world import failure_ends_all_ranks

_TOPOLOGY = Path("/sys/devices/system/cpu")

Core = tuple[int, int]
"""A core: its package (socket), and its number within."""


def main(arguments: Sequence[str]) -> int:
    """Make every check on every rank, print what is wrong, write the metrics; returns the exit status."""
    parser = argparse.ArgumentParser(prog="mpi_sanity", allow_abbrev=False)
    parser.add_argument("--cores", type=int, default=0, help="cores that each rank must have for itself; 0: any")
    parser.add_argument("--ranks_per_node", type=int, default=0, help="ranks that the fullest node must have; 0: any")
    options = parser.parse_args(arguments)
    world = MPI.COMM_WORLD
    libraries = mpi_library.mapped()
    cores = cores_of(os.sched_getaffinity(0))
    everyone = world.allgather(
        (
            (check_allreduce(world), check_one_library(libraries)),
            MPI.Get_processor_name(),
            cores,
            str(libraries[0].resolve()) if libraries else "unknown",
        )
    )
    checks = [merge(of_ranks) for of_ranks in zip(*(told[0] for told in everyone), strict=True)]
    hosts = [told[1] for told in everyone]
    checks.append(check_nodes(hosts, options.ranks_per_node))
    if options.cores:
        checks.append(check_binding(hosts, [told[2] for told in everyone], options.cores))
    if world.rank == 0:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.detail}", flush=True)
        failed = [f"{check.name}: {check.detail}" for check in checks if not check.ok]
        sys.stderr.write("".join(f"hidl: {line}\n" for line in failed))
        sys.stderr.flush()
    fullest = max(Counter(hosts).values())
    metrics.report(
        world,
        program="mpi_sanity",
        parameters=vars(options),
        versions={},
        metrics=[
            Metric("mpi_library", everyone[0][3], "path", [told[3] for told in everyone]),
            Metric("cores_per_rank", min(len(told[2]) for told in everyone), "cores", [len(t[2]) for t in everyone]),
            Metric("ranks_on_fullest_node", fullest, "ranks", [fullest]),
            Metric("nodes", len(set(hosts)), "nodes", [len(set(hosts))]),
        ],
    )
    # One rank fails for all, once all have been told: else their ends would drown what was said.
    world.Barrier()
    return 1 if world.rank == 0 and not all(check.ok for check in checks) else 0


def cores_of(processors: Iterable[int], topology: Path = _TOPOLOGY) -> frozenset[Core]:
    """The cores that these logical processors belong to; each counts for one where the system does not tell."""
    return frozenset(_core(processor, topology / f"cpu{processor}" / "topology") for processor in processors)


def _core(processor: int, directory: Path) -> Core:
    try:
        package, core = (int((directory / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        return -1, processor
    return package, core


def check_nodes(hosts: Sequence[str], wanted: int) -> Check:
    """The fullest node must have ``wanted`` ranks (0: any number): ranks that all start on one node show here."""
    counts = Counter(hosts)
    listed = ", ".join(f"{host}: {count}" for host, count in sorted(counts.items()))
    return Check("ranks per node", wanted in (0, max(counts.values())), f"{listed} (asked for: {wanted or 'any'})")


def check_binding(hosts: Sequence[str], cores: Sequence[frozenset[Core]], wanted: int) -> Check:
    """Each rank must be bound to ``wanted`` cores, none of which another rank of its host has too."""
    wrong = [f"rank {rank} has {len(own)} core(s)" for rank, own in enumerate(cores) if len(own) != wanted]
    users: dict[tuple[str, Core], list[int]] = {}
    for rank, (host, own) in enumerate(zip(hosts, cores, strict=True)):
        for core in own:
            users.setdefault((host, core), []).append(rank)
    shared = sorted({tuple(ranks) for ranks in users.values() if len(ranks) > 1})
    wrong += [f"ranks {', '.join(map(str, ranks))} share cores" for ranks in shared]
    return Check("binding", not wrong, "; ".join(wrong[:8]) or f"{wanted} core(s) of its own for each rank")


if __name__ == "__main__":
    with failure_ends_all_ranks():
        sys.exit(main(sys.argv[1:]))
