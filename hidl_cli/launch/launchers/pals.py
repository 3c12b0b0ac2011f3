"""``mpiexec`` of HPE Cray PALS: the launcher beside PBS on Aurora, Polaris and other HPE Cray EX systems.

Its options: ``man mpiexec`` there, and ALCF's user guides (docs.alcf.anl.gov, "Running Jobs").
"""

from __future__ import annotations

from hidl_cli.launch.launchers.contract import Launch, Launcher, Request
from hidl_cli.launch.placement import Placement, ranges
from hidl_cli.launchers import require_fit


class Pals(Launcher):
    """It starts its daemons on the hosts of ``--hostfile`` by itself."""

    name = "pals"
    program = "mpiexec"
    place = r"/pals/"
    #: Libraries that were built for Cray's PMI (libpmi of PALS), and Open MPI by PMIx.
    starts = ("cray-mpich", "mpich", "openmpi")
    needs_site_library = True

    def launch(self, request: Request) -> Launch:
        """See ``Launcher.launch``.

        ``--depth`` counts CPUs, which ``--cpu-bind depth`` gives each rank in a row from 0 on; on these systems a
        core's first hardware threads come before all second ones. Where that row holds reserved cores, or a rank would
        straddle sockets without need, the CPUs of each rank are listed. GPUs are not bound: each rank sees all GPUs of
        its node, and takes its own by its local rank.
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
    """Return the CPUs of each rank under ``--cpu-bind depth``; as ``Placement.places`` where these are unknown."""
    threads = placement.threads_per_rank
    starts = range(0, len(placement.places) * threads, threads)
    return [tuple(range(first, first + threads)) for first in starts]
