"""What a job on the installation would be: its MPI library, its launcher, and the environment of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from hidl_cli.doctor.context import Context
from hidl_cli.errors import UsageError
from hidl_cli.launch.launchers.srun import mpi_type
from hidl_cli.launch.library import launcher_for, library_for
from hidl_cli.mpi import Library
from hidl_cli.stack.installation import UNSET

#: Their programs are no part of an MPI library.
_OF_THE_SITE = ("srun", "ibrun", "jsrun")
_EXPORTING = ("-export", "-export-all")


@dataclass(frozen=True)
class Job:
    """One that is planned, or that hidl would plan by default.

    ``library``: what its ranks are linked to, None where nobody knows. ``program``: its launcher's, a path or a name;
    ``mpi_type``: what ``srun`` is given as ``--mpi=``. ``given``: variables that hidl or the site sets for all ranks.
    ``carried``: those of the shell that hidl was called from, as far as hidl does not set them; they reach the ranks
    if ``is_carried``. ``planned``: the run is about to be submitted. ``is_active``: the shell has the stack activated,
    so that a launcher may be called by hand.
    """

    library: Library | None = None
    launcher: str | None = None
    program: str | None = None
    mpi_type: str | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    carried: Mapping[str, str] = field(default_factory=dict)
    is_carried: bool = True
    planned: bool = False
    is_active: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """All that the ranks get."""
        return {**(self.carried if self.is_carried else {}), **self.given}


def probe(context: Context) -> Job:
    """The job of the plan, or that of the installation, or one of which only the environment is known."""
    plan, site = context.plan, context.site
    library: Library | None
    launcher: str | None
    program: str | None
    if plan is not None:
        launch = plan.steps[0].launch
        library, launcher, program = plan.mpi, plan.launcher, launch.argv[0]
        kind = next((word.partition("=")[2] for word in launch.argv if word.startswith("--mpi=")), None)
        given = {**plan.environment, **launch.environment}
    else:
        library = _library(context)
        launcher = _launcher(context, library) if library else None
        program = _program(library, launcher) if library and launcher else None
        kind = mpi_type(library) if library and launcher == "srun" else None
        given = {**site.policies.environment, **_of_the_library(context, library)}
    carried = {
        name: value for name, value in context.host.environment.items() if name not in given and name not in UNSET
    }
    return Job(
        library=library,
        launcher=launcher,
        program=program,
        mpi_type=kind,
        given=given,
        carried=carried,
        is_carried=site.policies.export != "none" and (launcher != "mpirun_rsh" or _exports(library)),
        planned=plan is not None,
        is_active=context.is_active,
    )


def _library(context: Context) -> Library | None:
    installation = context.installation
    if installation is None or (noted := installation.mpi) is None:
        return None
    own = Library(context.stack or "", noted[0], version=noted[1], prefix=str(installation.prefix))
    return library_for(context.site, own, None)


def _launcher(context: Context, library: Library) -> str | None:
    with suppress(UsageError):
        return launcher_for(context.site, library, None)
    return None


def _program(library: Library, launcher: str) -> str:
    return launcher if launcher in _OF_THE_SITE else library.program(launcher)


def _of_the_library(context: Context, library: Library | None) -> dict[str, str]:
    """What the site sets for its library, the tuning with it."""
    if library is None or library.name not in context.site.mpi:
        return {}
    tuning = context.site.mpi[library.name].tuning
    return {**library.environment, **{name: str(value) for name, value in tuning.items()}}


def _exports(library: Library | None) -> bool:
    """Does the site let mpirun_rsh pass the environment on, which it does not by itself?"""
    return any(word in _EXPORTING for word in library.launcher_arguments.get("mpirun_rsh", ())) if library else False
