"""``mpiexec`` of MPICH (Hydra)."""

from __future__ import annotations

from hidl_cli.launch.launchers.contract import Launch, Request


class Mpiexec:
    """The Hydra ``mpiexec`` of the very library: with another MPI's, N singletons would start."""

    name = "mpiexec"

    def launch(self, request: Request) -> Launch:
        """See ``Launcher.launch``. Hydra passes the environment on to all ranks by itself."""
        placement = request.placement
        argv = [request.mpi.program("mpiexec"), "-n", str(placement.ranks)]
        # The fork launcher keeps Hydra from asking a scheduler whose variables happen to be set.
        hosts = ["-f", request.hostfile, "-ppn", str(placement.ranks_per_node)]
        argv += ["-launcher", "fork"] if request.on_one_host else hosts
        argv += ["-bind-to", f"core:{placement.threads_per_rank}" if placement.bind else "none"]
        return Launch((*argv, *request.program))
