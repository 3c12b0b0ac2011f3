"""What is true of a twin, and what is not: shown by `hidl cluster status`, checked against the how-to by a test."""

from __future__ import annotations

from hidl_twin.dress import Dress

_TRUE = (
    "the job scripts are those that would go to the site, byte for byte",
    "names of hosts and partitions, limits of nodes and time, required options, features, and GPUs (counted)",
    "the modules that the site's file names, in a real Lmod",
    "what each node claims: sockets, cores, hardware threads; ranks are bound to cores that it claims",
)
_TRUE_OF_SLURM = ("Slurm itself: its queue, srun, sacct, signals, time limits, lost nodes",)
_NOT_TRUE = (
    "speed: all nodes share this machine's cores, and nothing is really bound",
    "the processor's architecture, its memory and the network",
    "GPUs: they are counted, and none is there",
    "which accounts there are: any name is taken",
    "the MPI libraries: MPICH or Open MPI, by the binary interface that the site's library has",
)
_STANDINS = {
    **dict.fromkeys(("slurm", "ssh"), "ibrun and mpirun_rsh are stand-ins; each says so in its first line"),
    "lsf": "LSF and jsrun are stand-ins; each says so in its first line",
    "pbs": "PBS and its mpiexec (PALS) are stand-ins; qsub and mpiexec say so in their first line",
    "flux": "Flux is a stand-in; flux batch says so in its first line",
}


def true_of(dress: Dress) -> tuple[str, ...]:
    """Statements that hold on the twin as on the site."""
    return (*(_TRUE_OF_SLURM if dress.scheduler == "slurm" else ()), *_TRUE)


def not_true_of(dress: Dress) -> tuple[str, ...]:
    """Statements that do not."""
    return (_STANDINS[dress.scheduler], *_NOT_TRUE)
