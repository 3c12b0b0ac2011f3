"""MPI sanity check: ``python -m hidl_workloads.world hidl_workloads.mpi_sanity --cores=2 --ranks_per_node=4``.

The world's size is right (the module ``world`` looks at it first), each process maps one MPI library, which is the
same on all ranks, sums over all ranks are exact, and each rank is bound to cores of its own. In a run on GPUs, each
rank has GPUs of its own.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hidl_workloads import arguments, gpus, metrics
from hidl_workloads.doctor.ranks import RULES, World, this_rank
from hidl_workloads.findings import Check
from hidl_workloads.metrics import Metric
from hidl_workloads.parameters import MpiSanity
from hidl_workloads.verify import check_allreduce, check_one_library, merge
from hidl_workloads.world import failure_ends_all_ranks

_WRONG_USAGE = 2
#: Set by the job script if it does not bind ranks, because another run is using this machine's cores.
_UNBOUND = "HIDL_UNBOUND"
_BINDING = ("HD046", "HD047")


def main(words: Sequence[str]) -> int:
    """Make every check on every rank, print what is wrong, write the metrics; returns the exit status."""
    try:
        parameters = arguments.parse(MpiSanity, words)
    except ValueError as error:
        sys.stderr.write(f"mpi_sanity: {error}\n")
        return _WRONG_USAGE
    world = MPI.COMM_WORLD
    mine = this_rank(world.rank, world.size)
    everyone = world.allgather((mine, (check_allreduce(world), check_one_library(mine.libraries))))
    ranks = tuple(rank for rank, _ in everyone)
    checks = [merge(of_ranks) for of_ranks in zip(*(told for _, told in everyone), strict=True)]
    checks.append(check_nodes([rank.host for rank in ranks], parameters.ranks_per_node))
    if parameters.cores and not os.environ.get(_UNBOUND):
        checks.append(check_binding(World(ranks, cores_per_rank=parameters.cores)))
    own, seen = zip(*world.allgather((gpus.facts(), gpus.seen())), strict=True)
    if gpus.is_wanted():
        checks.append(check_gpus([rank.host for rank in ranks], own, seen))
    if world.rank == 0:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.detail}", flush=True)
        failed = [f"{check.name}: {check.detail}" for check in checks if not check.ok]
        sys.stderr.write("".join(f"hidl: {line}\n" for line in failed))
        sys.stderr.flush()
    used = [str(Path(rank.libraries[0]).resolve()) if rank.libraries else "unknown" for rank in ranks]
    cores = [len(rank.cores) for rank in ranks]
    cards = [len(each) for each in own]
    of_nodes = [len(on_it) for on_it in World(ranks).by_host.values()]
    metrics.report(
        world,
        program="mpi_sanity",
        parameters=asdict(parameters),
        versions={},
        metrics=[
            Metric("mpi_library", used[0], "path", used),
            Metric("cores_per_rank", min(cores), "cores", cores),
            Metric("ranks_on_fullest_node", max(of_nodes), "ranks", [max(of_nodes)]),
            Metric("nodes", len(of_nodes), "nodes", [len(of_nodes)]),
            *([Metric("gpus_per_rank", min(cards), "GPUs", cards)] if gpus.is_wanted() else []),
        ],
    )
    # Only rank 0 fails, after all ranks got the result. Otherwise, messages about the other ranks would hide it.
    world.Barrier()
    return 1 if world.rank == 0 and not all(check.ok for check in checks) else 0


def check_nodes(hosts: Sequence[str], wanted: int) -> Check:
    """The fullest node must have ``wanted`` ranks (0: any number): ranks that all start on one node show here."""
    counts = Counter(hosts)
    listed = ", ".join(f"{host}: {count}" for host, count in sorted(counts.items()))
    return Check("ranks per node", wanted in (0, max(counts.values())), f"{listed} (requested: {wanted or 'any'})")


def check_binding(world: World) -> Check:
    """Each rank must be bound to the requested number of cores, which no other rank of its host shares."""
    wrong = [finding.seen for finding in RULES.findings(world) if finding.rule in _BINDING]
    return Check("binding", not wrong, "; ".join(wrong) or f"each rank has its own {world.cores_per_rank} core(s)")


def check_gpus(
    hosts: Sequence[str], own: Sequence[Sequence[Mapping[str, Any]]], seen: Sequence[Sequence[str]]
) -> Check:
    """The ranks of a host must use as many of the GPUs that they see as they can: none shares one while another idles.

    ``own``: the GPUs of each rank; ``seen``: the names of all that it sees.
    """
    wrong = [f"rank {rank} has no GPU" for rank, of_rank in enumerate(own) if not of_rank]
    for host in dict.fromkeys(hosts):
        here = [rank for rank, name in enumerate(hosts) if name == host]
        takers = Counter(gpu["id"] for rank in here for gpu in own[rank])
        available = {name for rank in here for name in seen[rank]}
        if len(takers) < min(len(available), takers.total()):
            shared = ", ".join(f"{id_}: {count} ranks" for id_, count in sorted(takers.items()))
            wrong.append(f"{host}: {len(takers)} of {len(available)} GPUs in use ({shared})")
    models = Counter(str(gpu["model"] or "unknown model") for of_rank in own for gpu in of_rank)
    listed = ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
    return Check("GPUs", not wrong, "; ".join(wrong) or f"assigned to the ranks in turn: {listed}")


if __name__ == "__main__":
    with failure_ends_all_ranks():
        sys.exit(main(sys.argv[1:]))
