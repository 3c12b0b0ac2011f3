"""Is MPI whole: ``python -m hidl_workloads.world hidl_workloads.mpi_sanity --cores=2 --ranks_per_node=4``.

The world's size is right (the module ``world`` looks at it first), each process maps one MPI library, which is the
same on all ranks, sums over all ranks are exact, and each rank is bound to cores of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mpi4py import MPI

from hidl_workloads import metrics
from hidl_workloads.doctor.ranks import RULES, World, this_rank
from hidl_workloads.findings import Check
from hidl_workloads.metrics import Metric
from hidl_workloads.verify import check_allreduce, check_one_library, merge
from hidl_workloads.world import failure_ends_all_ranks

_BINDING = ("HD046", "HD047")


def main(arguments: Sequence[str]) -> int:
    """Make every check on every rank, print what is wrong, write the metrics; returns the exit status."""
    parser = argparse.ArgumentParser(prog="mpi_sanity", allow_abbrev=False)
    parser.add_argument("--cores", type=int, default=0, help="cores that each rank must have for itself; 0: any")
    parser.add_argument("--ranks_per_node", type=int, default=0, help="ranks that the fullest node must have; 0: any")
    options = parser.parse_args(arguments)
    world = MPI.COMM_WORLD
    mine = this_rank(world.rank, world.size)
    everyone = world.allgather((mine, (check_allreduce(world), check_one_library(mine.libraries))))
    ranks = tuple(rank for rank, _ in everyone)
    checks = [merge(of_ranks) for of_ranks in zip(*(told for _, told in everyone), strict=True)]
    checks.append(check_nodes([rank.host for rank in ranks], options.ranks_per_node))
    if options.cores:
        checks.append(check_binding(World(ranks, cores_per_rank=options.cores)))
    if world.rank == 0:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.detail}", flush=True)
        failed = [f"{check.name}: {check.detail}" for check in checks if not check.ok]
        sys.stderr.write("".join(f"hidl: {line}\n" for line in failed))
        sys.stderr.flush()
    used = [str(Path(rank.libraries[0]).resolve()) if rank.libraries else "unknown" for rank in ranks]
    cores = [len(rank.cores) for rank in ranks]
    of_nodes = [len(on_it) for on_it in World(ranks).by_host.values()]
    metrics.report(
        world,
        program="mpi_sanity",
        parameters=vars(options),
        versions={},
        metrics=[
            Metric("mpi_library", used[0], "path", used),
            Metric("cores_per_rank", min(cores), "cores", cores),
            Metric("ranks_on_fullest_node", max(of_nodes), "ranks", [max(of_nodes)]),
            Metric("nodes", len(of_nodes), "nodes", [len(of_nodes)]),
        ],
    )
    # One rank fails for all, once all have been told: else their ends would drown what was said.
    world.Barrier()
    return 1 if world.rank == 0 and not all(check.ok for check in checks) else 0


def check_nodes(hosts: Sequence[str], wanted: int) -> Check:
    """The fullest node must have ``wanted`` ranks (0: any number): ranks that all start on one node show here."""
    counts = Counter(hosts)
    listed = ", ".join(f"{host}: {count}" for host, count in sorted(counts.items()))
    return Check("ranks per node", wanted in (0, max(counts.values())), f"{listed} (asked for: {wanted or 'any'})")


def check_binding(world: World) -> Check:
    """Each rank must be bound to as many cores as were asked for, none of which another rank of its host has too."""
    wrong = [finding.seen for finding in RULES.findings(world) if finding.rule in _BINDING]
    return Check("binding", not wrong, "; ".join(wrong) or f"{world.cores_per_rank} core(s) of its own for each rank")


if __name__ == "__main__":
    with failure_ends_all_ranks():
        sys.exit(main(sys.argv[1:]))
