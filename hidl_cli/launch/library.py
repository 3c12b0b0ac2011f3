"""Which MPI library a run's ranks are linked to: the stack's own, or one that the site offers in its place."""

from __future__ import annotations

from hidl_cli.errors import UsageError
from hidl_cli.launch.launchers import families
from hidl_cli.mpi import Abi, Family, Library
from hidl_cli.site.schema import Mpi, Site

#: How a user asks for the stack's own library.
OF_THE_STACK = "stack"

_OPEN_MPI: tuple[Family, ...] = ("openmpi", "spectrum-mpi")


def library_for(site: Site, own: Library, wanted: str | None) -> Library:
    """The library of that name: a key of the site's ``mpi``, or ``stack`` for ``own``; None: the site's default.

    Raises ``UsageError`` for an unknown name.
    """
    name = wanted or site.default_mpi or OF_THE_STACK
    if name == OF_THE_STACK:
        return own
    if name not in site.mpi:
        known = ", ".join([*site.mpi, OF_THE_STACK])
        raise UsageError(f"site {site.name} offers no MPI library {name!r}", hint=f"it has: {known}")
    return _of_the_site(name, site.mpi[name])


def launcher_for(site: Site, library: Library, wanted: str | None) -> str:
    """The launcher of that name; None: the first of the site's that starts this library's ranks.

    Raises ``UsageError`` where the site has it not, or has none that does.
    """
    if not site.launchers:
        raise UsageError(f"site {site.name} does not say which launcher it has", hint="`launchers` in its file")
    named = site.mpi[library.name].launchers if library.name in site.mpi else []
    able = families.fitting(library.family)
    offered = [name for name in named or site.launchers if name in site.launchers and name in able]
    if wanted is None and offered:
        return offered[0]
    if wanted is None or wanted not in offered:
        what = "no launcher" if wanted is None else f"no launcher {wanted!r}"
        others = ", ".join(name for name in site.mpi if name != library.name)
        raise UsageError(
            f"site {site.name} has {what} for MPI library {library.name} ({library.family})",
            hint=f"it has: {', '.join(offered)}" if offered else f"other MPI libraries (--mpi): {others or 'none'}",
        )
    return wanted


def abi(library: Library) -> Abi:
    """The binary interface that the library has, as mpi4py's wheels call it (``MPI4PY_MPIABI``)."""
    return "openmpi" if library.family in _OPEN_MPI else "mpich"


def _of_the_site(name: str, mpi: Mpi) -> Library:
    return Library(
        name,
        mpi.family,
        version=mpi.version,
        prefix=mpi.prefix,
        modules=tuple(mpi.modules),
        srun_mpi=mpi.srun_mpi,
        environment=dict(mpi.environment),
        launcher_arguments={launcher: tuple(words) for launcher, words in mpi.launcher_arguments.items()},
    )
