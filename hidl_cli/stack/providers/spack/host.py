"""What a machine has that Spack can take as it is: its compiler, its Python and the MPI library on PATH.

Only for sites that say ``spack: {detect: true}``; elsewhere the site's file says it.
"""

from __future__ import annotations

import re
from pathlib import Path

from hidl_cli.site.probes import compilers, mpi
from hidl_cli.site.probes.host import Host
from hidl_cli.site.schema import Mpi, Site
from hidl_cli.site.software import Compiler, External
from hidl_cli.stack.target import Target

#: What Spack asks of a Python: the parts of the standard library that need a library of the system.
_VARIANTS = "+bz2+ctypes+lzma+pyexpat+sqlite3+ssl+zlib"
_SYSTEM = re.compile(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', re.MULTILINE)


def detected(site: Site, target: Target, host: Host) -> Site:
    """The site, with what its file leaves open taken from this machine."""
    if not site.spack.detect:
        return site
    changes: dict[str, object] = {}
    if not site.compilers and (compiler := _gcc(host)):
        changes |= {"compilers": {"gcc": compiler}, "default_compiler": "gcc"}
    if "python" not in site.externals and (python := _python(host, target)):
        changes["externals"] = {**site.externals, "python": python}
    if site.default_mpi is None and (library := _mpi(host)):
        changes |= {"mpi": {**site.mpi, library.family: library}, "default_mpi": library.family}
    return site.model_copy(update=changes)


def operating_system(host: Host) -> str:
    """The operating system as Spack 0.23 calls it: debian12, rhel8, ubuntu22.04."""
    found: dict[str, str] = dict(_SYSTEM.findall(host.read("/etc/os-release")))
    name, version = found.get("ID", "linux"), found.get("VERSION_ID", "")
    return name + (version if name == "ubuntu" else version.partition(".")[0])


def _gcc(host: Host) -> Compiler | None:
    """The GCC on PATH; its C++ compiler must be there too, and be of the same version."""
    found = compilers.find(host, "gcc", compilers.PROGRAMS["gcc"])
    if found is None:
        return None
    return Compiler(
        package="gcc", version=found.version, prefix=found.prefix, c="gcc", cxx="g++", fortran=found.fortran
    )


def _python(host: Host, target: Target) -> External | None:
    """The interpreter that stacks are built on: the installation itself, not a virtual environment of it."""
    code = "import sys, platform; print(platform.python_version(), sys.base_prefix)"
    said = (host.ask(str(target.interpreter), "-I", "-c", code) or "").split(maxsplit=1)
    return External(version=said[0], prefix=said[1].strip(), variants=_VARIANTS) if len(said) == 2 else None


def _mpi(host: Host) -> Mpi | None:
    """The MPI library on PATH, if ``mpicc``, ``mpiexec`` and the program with its version are of one."""
    found = [library for library in mpi.on_path(host) if library.prefix]
    mpicc = host.which("mpicc")
    owners = [one for one in found if mpicc and str(Path(mpicc).parent.parent) == one.prefix]
    if len(found) != 1 or len(owners) != 1:
        return None
    return Mpi(family=owners[0].family, version=owners[0].version, prefix=owners[0].prefix)
