"""``mpiexec`` of MPICH (Hydra)."""

from __future__ import annotations

from pathlib import Path

from hidl_cli.launch.placement import Placement


class Mpiexec:
    """The Hydra ``mpiexec`` of the very stack: with another MPI's, N singletons would start."""

    name = "mpiexec"

    def command(self, placement: Placement, program: list[str], *, mpi_prefix: Path, on_one_host: bool) -> list[str]:
        """See ``Launcher.command``."""
        argv = [str(mpi_prefix / "bin" / "mpiexec"), "-n", str(placement.ranks)]
        # The fork launcher keeps Hydra from asking a scheduler whose variables happen to be set.
        argv += ["-launcher", "fork"] if on_one_host else ["-f", "hosts", "-ppn", str(placement.ranks_per_node)]
        argv += ["-bind-to", f"core:{placement.threads_per_rank}" if placement.bind else "none"]
        return [*argv, *program]
