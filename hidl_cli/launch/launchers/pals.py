"""``mpiexec`` of HPE Cray PALS, the launcher used with PBS on Aurora, Polaris and other HPE Cray EX systems.

For its options, see ``man mpiexec`` on such a system and "Running Jobs" in ALCF's user guides (docs.alcf.anl.gov).
"""

from __future__ import annotations

from hidl_cli.launch.launchers.contract import Launch, Launcher, Request
from hidl_cli.launch.placement import Placement, ranges
from hidl_cli.launchers import require_fit


class Pals(Launcher):
    """``mpiexec`` of PALS, which starts its own daemons on the hosts of ``--hostfile``."""

    name = "pals"
    program = "mpiexec"
    place = r"/pals/"
    #: Libraries built for Cray's PMI (PALS provides libpmi), and Open MPI, which uses PMIx.
    starts = ("cray-mpich", "mpich", "openmpi")
    needs_site_library = True

    def launch(self, request: Request) -> Launch:
        """Start the ranks with the ``mpiexec`` of PALS.

        ``--depth`` counts CPUs, and ``--cpu-bind depth`` assigns them to the ranks consecutively from CPU 0. On these
        systems, the first hardware threads of all cores are numbered before the second ones. If consecutive CPUs would
        include reserved cores, or unnecessarily make a rank straddle sockets, the CPUs of each rank are listed instead.
        GPUs are not bound: each rank sees all GPUs of its node and selects one by its local rank.
        """
        require_fit(self, request.mpi)
        placement = request.placement
        argv = ["mpiexec", "-n", str(placement.ranks), "--ppn", str(placement.ranks_per_node)]
        argv += ["--hostfile", request.hostfile]
        if placement.bind and placement.places != _by_depth(placement):
            argv += ["--cpu-bind", f"list:{':'.join(map(ranges, placement.places))}"]
        elif placement.bind:
            argv += ["--depth", str(placement.threads_per_rank), "--cpu-bind", "depth"]
        else:
            argv += ["--cpu-bind", "none"]
        argv += ["--pmi", "pmix"] if request.mpi.family == "openmpi" else []
        argv += ["--envall", *request.arguments_for(self.name)]
        return Launch((*argv, *request.program), host_option="")


def _by_depth(placement: Placement) -> list[tuple[int, ...]]:
    """Return the CPUs that ``--cpu-bind depth`` would assign to each rank."""
    threads = placement.threads_per_rank
    starts = range(0, len(placement.places) * threads, threads)
    return [tuple(range(first, first + threads)) for first in starts]
