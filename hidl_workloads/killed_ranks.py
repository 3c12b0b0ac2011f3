"""Shared memory that killed ranks have left where the ranks of a requeued Slurm job would take it for their own.

MPICH 5 names the memory that ranks of a node share after the id of the step: FNV-1a (32 bits) of ``JOB.STEP`` or of
PMIx's namespace, and the number of the node. Ranks that end without ``MPI_Finalize`` leave it in /dev/shm, and the
steps of a requeued job have the ids of those before. Ranks that find memory of that name do not initialise it: they
read counters and messages of killed ranks, and may wait for ever.
"""

from __future__ import annotations

import os
from contextlib import suppress

TYPE_CHECKING = False  # the typing module is not imported at run time: start-up time counts
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_IDS = ("PMI_JOBID", "PMIX_NAMESPACE")
_STARTS_RANKS = "slurmstepd"


def remove_shared_memory(environment: Mapping[str, str]) -> None:
    """Remove memory of this step's name that is older than the step, in steps of a requeued job only.

    Each rank does this before ``MPI_Init``, so that none finds it. Files of this step are younger than the Slurm daemon
    that started its ranks; if that daemon is hidden, nothing is removed. Errors are ignored: MPI reports what it cannot
    use.
    """
    if environment.get("SLURM_RESTART_COUNT", "0") == "0":
        return
    from pathlib import Path  # imported here: start-up time counts

    with suppress(OSError, ValueError, IndexError):
        begun = _start_of_step(Path("/proc"))
        for id_ in filter(None, map(environment.get, _IDS)):
            for file in Path("/dev/shm").glob(f"mpich_*_{_fnv(id_):x}_*"):
                with suppress(OSError):
                    if file.stat().st_mtime < begun:
                        file.unlink()


def _fnv(text: str) -> int:
    found = 2166136261
    for byte in text.encode():
        found = (found ^ byte) * 16777619 % 2**32
    return found


def _start_of_step(processes: Path) -> float:
    """Return the time at which the daemon of this step was started, in seconds since 1970.

    Raises:
        OSError: A process between it and this one cannot be read, or there is no such daemon.
    """
    process = os.getppid()
    while True:
        name, _, rest = (
            (processes / str(process) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        )
        fields = rest.split()
        if name.partition("(")[2] == _STARTS_RANKS:
            break
        process = int(fields[1])
    (booted,) = (
        int(line.split()[1])
        for line in (processes / "stat").read_text(encoding="ascii").splitlines()
        if line.startswith("btime ")
    )
    return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
