"""``python -m hidl_workloads.world [MODULE [ARGUMENT...]]``: see that the ranks form one world, then run the module.

The number of ranks that must be there is in ``$HIDL_WORLD_SIZE``. A launcher whose process manager does not speak with
the program's MPI library starts N singletons, each with status 0: they are caught here, before any other work. The
module runs in the same process, so that the check costs no launch of its own; an exception on one rank ends all.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from typing import Any, NoReturn

#: The exit status of a world of the wrong size.
WRONG_WORLD = 86

_LAUNCHER_VARIABLES = (
    "PMI_SIZE",
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "SLURM_NTASKS",
    "SLURM_PROCID",
)


def check(expected: int) -> Any:
    """Initialise MPI and return ``COMM_WORLD``; a world of another size than ``expected`` ends with WRONG_WORLD."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.size != expected:
        if world.rank == 0:
            print(_complaint(world.size, expected, MPI.Get_library_version()), file=sys.stderr, flush=True)
        sys.exit(WRONG_WORLD)
    return world


def run(world: Any, module: str, arguments: list[str]) -> None:
    """Run ``module`` as ``__main__``; an error that leaves it on one rank ends every rank with a status other than 0."""
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code not in (None, 0):
            if not isinstance(end.code, int):
                print(end.code, file=sys.stderr)
            _end_all(world, end.code if isinstance(end.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        _end_all(world, 1)


def _end_all(world: Any, status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    if world.size > 1:
        world.Abort(status)
    sys.exit(status)


def _complaint(size: int, expected: int, library: str) -> str:
    seen = [f"{name}={os.environ[name]}" for name in _LAUNCHER_VARIABLES if name in os.environ]
    cause = (
        "Each rank came up as a singleton: the launcher's process manager (PMI) and this MPI library do not speak with "
        "each other, or the mpiexec is another MPI's."
        if size == 1
        else "The launcher started another number of ranks than the plan says."
    )
    return (
        f"hidl: COMM_WORLD has {size} rank(s), and {expected} were planned. {cause}\n"
        f"  MPI library: {library.splitlines()[0].strip()}\n"
        f"  launcher's variables: {' '.join(seen) or 'none'}\n"
        "  Next: start the ranks with the stack's own mpiexec, or with srun --mpi=TYPE as the library was built for."
    )


def main() -> None:
    """Check, then run what the command line names."""
    expected = os.environ.get("HIDL_WORLD_SIZE", "")
    if not expected.isdecimal():
        sys.exit("HIDL_WORLD_SIZE does not say how many ranks there must be")
    world = check(int(expected))
    if len(sys.argv) > 1:
        run(world, sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
