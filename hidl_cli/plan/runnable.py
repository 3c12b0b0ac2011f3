"""Can job scripts be rendered for a site? Shown by ``hidl site list`` and ``hidl site check``."""

from __future__ import annotations

from hidl_cli.batch_systems import SSH
from hidl_cli.launch.hosts import WITHOUT_HOSTS
from hidl_cli.launch.library import launcher_for, library_for, without_launcher
from hidl_cli.mpi import Library
from hidl_cli.schedulers import unusable
from hidl_cli.site.schema import Site

#: The MPI libraries that stacks bring along, by the stack that holds nothing else.
_OF_STACKS = (Library("mpi", "mpich"), Library("openmpi", "openmpi"))


def reason_not_runnable(site: Site) -> str | None:
    """Return why no job script can be rendered for the site; None if one can.

    Checks its scheduler, then its launchers for the site's default MPI library, else for those of the stacks.
    """
    if site.scheduler == SSH and site.node_type().hosts is None:
        return WITHOUT_HOSTS
    reasons = [without_launcher(site, library) for library in _libraries(site)]
    return unusable(site) or (None if None in reasons else reasons[0])


def default_launcher(site: Site) -> str:
    """Return the launcher that runs use by default; the site must be runnable."""
    return next(launcher_for(site, each, None) for each in _libraries(site) if without_launcher(site, each) is None)


def _libraries(site: Site) -> list[Library]:
    return [library_for(site, own, None) for own in _OF_STACKS]
