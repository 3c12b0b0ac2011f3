"""Check the size of MPI's world before any other work, then run a module in the same process.

::

    HIDL_WORLD_SIZE=2 mpiexec -n 2 python -m hidl_workloads.world [MODULE [ARG...]]

A launcher whose process-management interface (PMI) the program's MPI library does not speak starts N programs that
are each alone in a world of size 1, and every one of them ends with status 0. So the size is compared with
``$HIDL_WORLD_SIZE`` first; every rank of a wrong world ends with ``WRONG_WORLD``. A rank that fails later ends all
ranks at once: the others would wait for it for ever.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager

from mpi4py import MPI

TYPE_CHECKING = False  # the typing module is not imported at run time: start-up time counts
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import NoReturn

EXPECTED_SIZE = "HIDL_WORLD_SIZE"
WRONG_WORLD = 86
"""Exit status of every rank of a world that has not the expected size."""

_NO_EXPECTATION = 2
_INTERRUPTED = 130

# A launcher ends all ranks when the first has failed. Ranks that do not know of each other wait so long for all others
# to get as far as they are, so that the message is printed, and the step's status is theirs, not that of a signal.
_GATHERING_SECONDS = 2.0

# A rank's number, as its launcher tells it: the message is printed once, by the rank whose number is 0. The first of
# these that is set holds: inside a Slurm job, ranks of other launchers see the SLURM_PROCID of what started them.
_RANK_VARIABLES = (
    "MV2_COMM_WORLD_RANK",  # mpirun_rsh
    "OMPI_COMM_WORLD_RANK",  # mpirun, jsrun
    "JSM_NAMESPACE_RANK",  # jsrun
    "PMIX_RANK",  # srun --mpi=pmix
    "PMI_RANK",  # mpiexec, srun --mpi=pmi2
    "PALS_RANKID",  # Cray's mpiexec
    "FLUX_TASK_RANK",
    "SLURM_PROCID",  # srun
)
_SIZE_VARIABLES = ("MV2_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "PMI_SIZE", "FLUX_JOB_SIZE")
_KIND_VARIABLES = ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "PMIX_NAMESPACE", "SLURM_MPI_TYPE", "MPIRUN_RSH_LAUNCH")


def main(arguments: list[str]) -> int:
    """Check the world and run ``arguments[0]`` as a module with the rest as its arguments; returns the exit status."""
    expected = os.environ.get(EXPECTED_SIZE, "")
    if not expected.isdecimal() or int(expected) < 1:
        _say(f"hidl: ${EXPECTED_SIZE} must be the number of ranks that were asked for, not {expected!r}")
        return _NO_EXPECTATION
    if MPI.COMM_WORLD.size != int(expected):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if _speaks_for_all(os.environ):
            _say(explain(int(expected), MPI.COMM_WORLD.size, os.environ))
        if MPI.COMM_WORLD.size == 1:
            time.sleep(_GATHERING_SECONDS)
        return WRONG_WORLD
    if arguments:
        import runpy

        with failure_ends_all_ranks():
            sys.argv = list(arguments)
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    return 0


def explain(expected: int, found: int, environment: Mapping[str, str]) -> str:
    """Say what is wrong with a world of ``found`` ranks, why that is, and what to look at."""
    from hidl_workloads import mpi_library

    if found == 1 and not any(environment.get(name) == "1" for name in _SIZE_VARIABLES):
        what = f"{expected} ranks were asked for, but each is alone in an MPI world of size 1 ({expected} singletons)"
        why = (
            "The launcher's process-management interface and the MPI library of the program do not speak with each\n"
            "other: another MPI's mpiexec was used, or srun with an --mpi type that this library does not know.\n"
            "Start the program with the launcher of the library named below, or name the type that it knows: pmix for\n"
            "Open MPI, pmi2 for MPICH and its kin (srun --mpi=list; `srun_mpi` of the MPI library in the site's file)."
        )
    else:
        what = f"{expected} ranks were asked for, but the MPI world has {found}"
        why = (
            f"The launcher was told another number of ranks than ${EXPECTED_SIZE} says; compare its -n with the job's."
        )
    names = (*_SIZE_VARIABLES, *_RANK_VARIABLES, *_KIND_VARIABLES)
    seen = [f"  {name}={environment[name]}" for name in names if name in environment]
    libraries = mpi_library.mapped()
    paths = (
        ["  (its file is not known: no /proc/self/maps)"] if libraries is None else [f"  {path}" for path in libraries]
    )
    return "\n".join(
        (
            f"hidl: {what}.",
            why,
            f"MPI library of the program: {mpi_library.version()}",
            *paths,
            "Launcher's variables seen by the program:",
            *(seen or ["  none: the program was not started by a launcher, or its environment was not passed on"]),
        )
    )


@contextmanager
def failure_ends_all_ranks() -> Iterator[None]:
    """Turn an exception, or an exit with a status other than 0, into the end of all ranks (``MPI_Abort``)."""
    try:
        yield
    except SystemExit as stop:
        if stop.code is None or stop.code == 0:
            raise
        if isinstance(stop.code, int):
            _abort(stop.code)
        _say(str(stop.code))
        _abort(1)
    except KeyboardInterrupt:
        _abort(_INTERRUPTED)
    except BaseException:
        import traceback

        world = MPI.COMM_WORLD
        _say(f"{traceback.format_exc()}hidl: rank {world.rank} of {world.size} failed (above); all ranks are ended.")
        _abort(1)


def _abort(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # A status such as 256 would reach the launcher as 0.
    MPI.COMM_WORLD.Abort(status & 0xFF or 1)
    os._exit(status & 0xFF or 1)  # under srun, MPI_Abort can return: the launcher then ends the others


def _speaks_for_all(environment: Mapping[str, str]) -> bool:
    """Whether this process prints the message: rank 0, as far as MPI or the launcher's variables can tell."""
    if MPI.COMM_WORLD.rank != 0:
        return False
    numbers = [environment[name] for name in _RANK_VARIABLES if name in environment]
    return not numbers or numbers[0] == "0"


def _say(text: str) -> None:
    """Write ``text`` to stderr in one piece, so that other ranks' lines do not come between."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
