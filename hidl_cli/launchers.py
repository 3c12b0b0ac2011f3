"""The launchers by name, and the MPI libraries that each supports. Their code is in ``hidl_cli/launch/launchers``."""

from __future__ import annotations

from typing import Any, ClassVar

from hidl_cli.errors import InvalidInput
from hidl_cli.mpi import Family, Library
from hidl_cli.plugins import Registry


class LauncherTraits:
    """Properties of a launcher that are known without launching anything.

    ``starts`` lists the families of MPI libraries whose ranks it can start. The launcher and the library must share a
    process management interface (PMI). Otherwise, the ranks start as N separate worlds of one rank each and still exit
    with status 0.
    """

    name: ClassVar[str]
    starts: ClassVar[tuple[Family, ...]]
    #: Name of the executable, or None if it is the launcher's name.
    program: ClassVar[str | None] = None
    #: Pattern for the executable's path if another launcher's executable has the same name.
    place: ClassVar[str | None] = None
    #: Whether the executable comes with each MPI library and must belong to the library that the ranks are linked to.
    of_library: ClassVar[bool] = False
    #: Whether the launcher supports only the site's MPI libraries, because it cannot find a stack's own library, or
    #: because that library is not built for the launcher's PMI.
    needs_site_library: ClassVar[bool] = False
    #: Whether the launcher takes the number of ranks per node from the job's number of tasks.
    needs_tasks: ClassVar[bool] = False
    #: Whether the launcher starts ranks over ssh on the hosts in a host file, without a scheduler.
    through_ssh: ClassVar[bool] = False
    #: Whether ReFrame's launcher with the same name starts ranks in the same way.
    in_reframe: ClassVar[bool] = False


def _instance(found: Any) -> LauncherTraits:
    if not (isinstance(found, type) and issubclass(found, LauncherTraits)):
        raise TypeError("a launcher must be a subclass of hidl_cli.launch.launchers.contract.Launcher")
    return found()


_PACKAGE = "hidl_cli.launch.launchers"

#: Each launcher has one file and one line here, or is a plug-in. A drafted site file uses the first launcher that is
#: found on the machine.
LAUNCHERS: Registry[LauncherTraits] = Registry(
    "hidl.launchers",
    "launcher",
    {
        "ibrun": f"{_PACKAGE}.ibrun:Ibrun",
        "jsrun": f"{_PACKAGE}.jsrun:Jsrun",
        "pals": f"{_PACKAGE}.pals:Pals",
        "srun": f"{_PACKAGE}.srun:Srun",
        "flux": f"{_PACKAGE}.flux:FluxRun",
        "mpiexec": f"{_PACKAGE}.mpiexec:Mpiexec",
        "mpirun": f"{_PACKAGE}.mpirun:Mpirun",
        "mpirun_rsh": f"{_PACKAGE}.mpirun_rsh:MpirunRsh",
    },
    members=("name", "starts", "launch"),
    make=_instance,
)


def starts(name: str, library: Library, *, of_site: bool = True) -> bool:
    """Return whether the launcher can start the library's ranks; ``of_site`` is False for a stack's own library."""
    traits = LAUNCHERS.get(name)
    return library.family in traits.starts and (of_site or not traits.needs_site_library)


def fitting(family: Family) -> tuple[str, ...]:
    """Return the launchers that can start ranks of ``family``, skipping plug-ins that cannot be loaded."""
    return tuple(name for name, traits in LAUNCHERS.usable() if family in traits.starts)


def through_ssh() -> tuple[str, ...]:
    """Return the launchers that work without a scheduler, skipping plug-ins that cannot be loaded."""
    return tuple(name for name, traits in LAUNCHERS.usable() if traits.through_ssh)


def misfit_of_ssh(name: object) -> str | None:
    """Return the reason why the launcher cannot start ranks without a scheduler, or None if it can or is unknown."""
    if name not in LAUNCHERS or name in through_ssh():
        return None
    return f"launcher {name} requires a scheduler; hosts over ssh have none"


def require_fit(launcher: LauncherTraits, library: Library) -> None:
    """Raise ``InvalidInput`` if the launcher cannot start the ranks of ``library``."""
    if library.family not in launcher.starts:
        raise InvalidInput(
            f"launcher {launcher.name} cannot start the ranks of {library.name} ({library.family}): "
            "each would be a separate world",
            hint=f"use one of: {', '.join(fitting(library.family))}",
        )
