"""The MPI library that ranks are linked to, and those who are to start them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes import elf, job
from hidl_cli.doctor.probes.job import Job
from hidl_cli.launch.library import abi
from hidl_cli.mpi import Abi
from hidl_cli.site.probes.mpi import runtime
from hidl_cli.site.probes.slurm import mpi_types
from hidl_cli.stack.installation import Installation

#: What mpi4py's wheels call their modules: one for each ABI, or one alone where it was compiled against one library.
_OF_A_WHEEL = re.compile(r"MPI\.(mpich|openmpi|impi|mpiabi|msmpi)\.")
_SONAMES: dict[str, Abi] = {"libmpi.so.12": "mpich", "libmpich.so.12": "mpich", "libmpi.so.40": "openmpi"}
#: These launchers are programs of an MPI library.
_OF_A_LIBRARY = ("mpiexec", "mpirun", "mpirun_rsh")
_OF_WHEELS: dict[str, Abi] = {"impi": "mpich"}


@dataclass(frozen=True)
class Starter:
    """An ``mpiexec``: where it lies, and whose ranks it starts (None: unknown)."""

    place: str
    starts: Abi | None


@dataclass(frozen=True)
class Libraries:
    """Who is linked to what, and started by whom.

    ``abi``: of the job's MPI library. ``prefix``: of the installation. ``mpiexec``: the first on the PATH.
    ``mpi4py``: the ABIs that the installation's mpi4py was built for, None where that is unknown. ``asked_abi``:
    ``$MPI4PY_MPIABI`` as the ranks get it. ``program_is_there``: is the launcher's program here; None: it is not known
    before the job has loaded its modules. ``offered``: what ``srun --mpi=`` takes here; None: unknown.
    ``on_this_host``: the ranks are started on this very machine.
    """

    job: Job
    abi: Abi | None = None
    prefix: str | None = None
    mpiexec: Starter | None = None
    mpi4py: frozenset[str] | None = None
    asked_abi: str | None = None
    program_is_there: bool | None = None
    offered: tuple[str, ...] | None = None
    on_this_host: bool = True


def probe(context: Context) -> Libraries:
    """The libraries of the job on this host; of a site that this host is no part of, only what its files tell."""
    one = job.probe(context)
    return Libraries(
        job=one,
        abi=abi(one.library) if one.library else None,
        mpiexec=_mpiexec(context, one) if context.is_here else None,
        prefix=str(context.installation.prefix) if context.installation else None,
        mpi4py=built_for(context.installation) if context.installation else None,
        asked_abi=one.environment.get("MPI4PY_MPIABI"),
        program_is_there=_is_there(context, one) if context.is_here else None,
        offered=(mpi_types(context.host) or None) if context.is_here and one.mpi_type else None,
        on_this_host=context.site.scheduler == "local",
    )


def built_for(installation: Installation) -> frozenset[str] | None:
    """The ABIs that an installation's mpi4py was built for; None where it has none, or it tells nothing."""
    found: set[str] = set()
    for module in _modules(installation.prefix):
        of_a_wheel = _OF_A_WHEEL.match(module.name)
        if of_a_wheel:
            found.add(_OF_WHEELS.get(of_a_wheel[1], of_a_wheel[1]))
        else:
            found.update(_SONAMES[name] for name in elf.needed(module) or () if name in _SONAMES)
    return frozenset(found) or None


def _modules(prefix: Path) -> Iterator[Path]:
    for pattern in ("lib/python3*", "view/lib*/python3*"):  # wheels; what Spack shows
        yield from prefix.glob(f"{pattern}/site-packages/mpi4py/MPI.*.so")


def _mpiexec(context: Context, one: Job) -> Starter | None:
    """The one that the planned job takes from PATH, or that a person would call; None where it is named by its path."""
    if not one.planned:
        place = context.host.which("mpiexec")
    elif one.launcher in ("mpiexec", "mpirun") and os.sep not in (one.program or os.sep):
        place = _program(context, one)
    else:
        return None
    if place is None:
        return None
    own = context.installation is not None and place == str(context.installation.mpiexec)
    return Starter(place, None if own else runtime(context.host, place))


def _is_there(context: Context, one: Job) -> bool | None:
    if one.program is None or (os.sep not in one.program and _has_modules(context)):
        return None
    return context.host.which(_program(context, one) or one.program) is not None


def _program(context: Context, one: Job) -> str | None:
    """Where the job will find its launcher; None: on a PATH that its modules make, or nowhere.

    Of an MPI library that is on PATH the job script takes what lies beside ``mpicc``, and puts it before the stack's
    own (templates/job.sh.j2).
    """
    program, host = one.program, context.host
    if program is None or os.sep in program or one.launcher not in _OF_A_LIBRARY:
        return program and host.which(program)
    if _has_modules(context):
        return None
    wrapper = host.which("mpicc") or ""
    if wrapper.endswith("/bin/mpicc"):
        return wrapper.removesuffix("mpicc") + program
    return str(context.installation.prefix / "bin" / program) if context.installation else host.which(program)


def _has_modules(context: Context) -> bool:
    """Will the job load modules, which may change its PATH?"""
    if context.plan is not None:
        return bool(context.plan.modules)
    library = context.site.mpi.get(context.site.default_mpi or "")
    return bool(context.site.policies.modules or (library and library.modules))
