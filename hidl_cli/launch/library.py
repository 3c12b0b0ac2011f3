"""Choose the MPI library of a run (the stack's own or one of the site's) and its launcher."""

from __future__ import annotations

from hidl_cli.batch_systems import SSH
from hidl_cli.errors import UsageError
from hidl_cli.inputs.check import Scalar
from hidl_cli.launchers import LAUNCHERS, misfit_of_ssh, require_fit, starts, through_ssh
from hidl_cli.mpi import Library
from hidl_cli.site.schema import Mpi, MpiWithGpus, Site

#: The name that selects the stack's own library (``--mpi stack``).
OF_THE_STACK = "stack"


def library_for(site: Site, own: Library, wanted: str | None, *, gpus: bool = False) -> Library:
    """Return the MPI library for a run.

    Args:
        own: The stack's own library.
        wanted: A key of the site's ``mpi``, or ``stack`` to select ``own``; None selects the site's default.
        gpus: Whether the run computes on GPUs.

    Raises ``UsageError`` for an unknown name.
    """
    name = wanted or site.default_mpi or OF_THE_STACK
    if name == OF_THE_STACK:
        return own
    if name not in site.mpi:
        known = ", ".join([*site.mpi, OF_THE_STACK])
        raise UsageError(f"site {site.name} has no MPI library {name!r}", hint=f"choose one of: {known}")
    return _of_the_site(name, site.mpi[name], gpus=gpus)


def launcher_for(site: Site, library: Library, wanted: str | None) -> str:
    """Return the launcher ``wanted``, or else the site's first launcher that can start the library's ranks.

    A launcher from a plug-in does not have to be listed by the site. Raises ``UsageError`` if the site has no such
    launcher or no scheduler for it, and ``InvalidInput`` if a plug-in's launcher cannot start the library's ranks.
    """
    if site.scheduler == SSH and (misfit := misfit_of_ssh(wanted)):
        raise UsageError(misfit, hint=f"use one of the launchers that work over ssh: {', '.join(through_ssh())}")
    if wanted and wanted not in site.launchers and LAUNCHERS.is_plugin(wanted):
        require_fit(LAUNCHERS.get(wanted), library)
        return wanted
    offered = _launchers(site, library)
    if not site.launchers:
        raise UsageError(f"site {site.name}: {without_launcher(site, library)}", hint="set `launchers` in its file")
    if not offered:
        others = ", ".join(name for name in site.mpi if name != library.name)
        raise UsageError(
            f"site {site.name}: {without_launcher(site, library)}",
            hint=f"other MPI libraries (--mpi): {others or 'none'}",
        )
    if wanted is not None and wanted not in offered:
        raise UsageError(
            f"site {site.name}: no launcher {wanted!r} for MPI library {library.name} ({library.family})",
            hint=f"choose one of: {', '.join(offered)}",
        )
    return wanted or offered[0]


def without_launcher(site: Site, library: Library) -> str | None:
    """Return the reason why no launcher of the site can start the library's ranks, or None if one can."""
    if not site.launchers:
        return "unknown launcher"
    if _launchers(site, library):
        return None
    known = (
        ""
        if site.mpi
        else f"; the site file does not specify which MPI libraries {' or '.join(site.launchers)} can start"
    )
    return f"no launcher for MPI library {library.name} ({library.family}){known}"


def _launchers(site: Site, library: Library) -> list[str]:
    """Return the site's launchers that can start the library's ranks, starting with the default."""
    of_the_site = library.name in site.mpi
    named = site.mpi[library.name].launchers if of_the_site else []
    usable = [name for name in named or site.launchers if name in site.launchers]
    return [name for name in usable if starts(name, library, of_site=of_the_site)]


def site_tuning(site: Site, library: Library, *, gpus: bool) -> dict[str, Scalar]:
    """Return the run-time variables that the site sets for the library."""
    if library.name not in site.mpi:
        return site.tuning.get(library.family, {})
    mpi = site.mpi[library.name]
    return {**mpi.tuning, **(mpi.with_gpus.tuning if gpus else {})}


def _of_the_site(name: str, mpi: Mpi, *, gpus: bool) -> Library:
    added = mpi.with_gpus if gpus else MpiWithGpus()
    arguments = {
        launcher: (*mpi.launcher_arguments.get(launcher, ()), *added.launcher_arguments.get(launcher, ()))
        for launcher in (*mpi.launcher_arguments, *added.launcher_arguments)
    }
    return Library(
        name,
        mpi.family,
        version=mpi.version,
        prefix=mpi.prefix,
        modules=tuple(mpi.modules),
        srun_mpi=mpi.srun_mpi,
        environment={**mpi.environment, **added.environment},
        launcher_arguments=arguments,
    )
