"""Launchers by name, and which MPI families each starts. The launchers themselves: ``hidl_cli/launch/launchers``."""

from __future__ import annotations

from typing import Any, ClassVar

from hidl_cli.errors import InvalidInput
from hidl_cli.mpi import Family, Library
from hidl_cli.plugins import Registry


class Traits:
    """What is known of a launcher without a launch.

    ``starts``: the families whose ranks it starts. Launcher and library must share a process-management interface
    (PMI); else the ranks start as N worlds of one rank each, and end with status 0.
    """

    name: ClassVar[str]
    starts: ClassVar[tuple[Family, ...]]
    #: The executable; None: it is called as the launcher is.
    program: ClassVar[str | None] = None
    #: A regular expression for the executable's path, where another launcher's has the same name.
    place: ClassVar[str | None] = None
    #: The executable comes with each MPI library, and must be that of the library that the ranks are linked to.
    of_library: ClassVar[bool] = False
    #: It starts the site's libraries only: a stack's own was not built for its PMI, or is not found by it.
    needs_site_library: ClassVar[bool] = False
    #: It starts ranks on the hosts of a host file through ssh, without a scheduler.
    through_ssh: ClassVar[bool] = False
    #: ReFrame's launcher of this name starts ranks as hidl's does.
    in_reframe: ClassVar[bool] = False


def _instance(found: Any) -> Traits:
    if not (isinstance(found, type) and issubclass(found, Traits)):
        raise TypeError("a launcher must be a subclass of hidl_cli.launch.launchers.contract.Launcher")
    return found()


_PACKAGE = "hidl_cli.launch.launchers"

#: A launcher is one file and one line here, or a plug-in. A drafted site takes the first that the machine has.
LAUNCHERS: Registry[Traits] = Registry(
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
    """Return whether the launcher starts the library's ranks; ``of_site``: the library is the site's, not a stack's."""
    traits = LAUNCHERS.get(name)
    return library.family in traits.starts and (of_site or not traits.needs_site_library)


def fitting(family: Family) -> tuple[str, ...]:
    """Return the launchers that start ranks of ``family``, without plug-ins that cannot be loaded."""
    return tuple(name for name, traits in LAUNCHERS.usable() if family in traits.starts)


def through_ssh() -> tuple[str, ...]:
    """Return the launchers that start ranks without a scheduler, without plug-ins that cannot be loaded."""
    return tuple(name for name, traits in LAUNCHERS.usable() if traits.through_ssh)


def misfit_of_ssh(name: object) -> str | None:
    """Return why the launcher cannot start ranks on hosts without a scheduler; None if it can, or is unknown."""
    if name not in LAUNCHERS or name in through_ssh():
        return None
    return f"launcher {name} requires a scheduler; hosts over ssh have none"


def require_fit(launcher: Traits, library: Library) -> None:
    """Raise ``InvalidInput`` if the launcher cannot start the ranks of ``library``."""
    if library.family not in launcher.starts:
        raise InvalidInput(
            f"launcher {launcher.name} cannot start the ranks of {library.name} ({library.family}): "
            "each would be a world of its own",
            hint=f"launchers that can: {', '.join(fitting(library.family))}",
        )
