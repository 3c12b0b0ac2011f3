"""``flux run``: a job step of the Flux instance that the job runs in (flux-run(1), flux-shell-options(7))."""

from __future__ import annotations

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.launchers.contract import Launch, Launcher, Request
from hidl_cli.launchers import require_fit


class Flux(Launcher):
    """It needs no host file, and passes the whole environment on."""

    name = "flux"
    #: By PMI-1; Open MPI 5 by PMIx (flux-pmix), Spectrum MPI by the job shell's plugin.
    starts = (
        "mpich",
        "mvapich2",
        "mvapich2-gdr",
        "mvapich",
        "mvapich-plus",
        "cray-mpich",
        "openmpi",
        "spectrum-mpi",
    )

    def launch(self, request: Request) -> Launch:
        """See ``Launcher.launch``.

        Flux gives each task cores and GPUs of its own, and by default lets all tasks of a node use all of them:
        ``per-task`` binds a rank to its own cores, and lets it see its own GPUs only.
        """
        require_fit(self, request.mpi)
        argv = ["flux", "run", *_resources(request), "-o", "exit-on-error"]
        for option in request.mpi.traits.flux_options:
            argv += ["-o", option]
        return Launch(
            (*argv, *request.arguments_for(self.name), *request.program),
            host_option="--requires=host:",
        )


def _resources(request: Request) -> list[str]:
    """Cores and GPUs for each rank; where a node has too few cores, whole nodes, whose cores the ranks share."""
    placement, gpus = request.placement, request.gpus_per_rank
    nodes = ["-N", str(placement.nodes)]
    if placement.bind:
        each = ["-n", str(placement.ranks), "-c", str(placement.threads_per_rank), *(["-g", str(gpus)] if gpus else [])]
        return [*nodes, *each, "-o", "cpu-affinity=per-task", *(["-o", "gpu-affinity=per-task"] if gpus else [])]
    if placement.ranks != placement.nodes * placement.ranks_per_node:
        raise InvalidInput(
            f"flux run cannot share cores among {placement.ranks} ranks on {placement.nodes} nodes: "
            f"not the same number on each",
            hint="ask for a multiple of the nodes, or for at most as many ranks times threads (--threads) as cores",
        )
    return [*nodes, "--exclusive", f"--tasks-per-node={placement.ranks_per_node}", "-o", "cpu-affinity=off"]
