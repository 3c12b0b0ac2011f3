"""MPI libraries: those on the PATH, and those that the site's modules offer; and the launchers on the PATH."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import get_args

from hidl_cli.mpi import Abi, Family
from hidl_cli.site.probes import modules
from hidl_cli.site.probes.facts import Library
from hidl_cli.site.probes.host import Host
from hidl_cli.site.schema import LauncherName

#: First words of modules' names; the longer ones before those that they begin with.
_MODULES: dict[str, Family] = {
    "mvapich2-gdr": "mvapich2-gdr",
    "mvapich2": "mvapich2",
    "mvapich-plus": "mvapich-plus",
    "mvapich": "mvapich",
    "cray-mpich": "cray-mpich",
    "mpich": "mpich",
    "spectrum-mpi": "spectrum-mpi",
    "openmpi": "openmpi",
    "ompi": "openmpi",
    "impi": "intel-mpi",
    "intelmpi": "intel-mpi",
    "intel-mpi": "intel-mpi",
    "intel-oneapi-mpi": "intel-mpi",
}
_MODULE = re.compile(r"([A-Za-z][\w.+-]{0,40})(?:/([\w.+/-]{1,80}))?", re.ASCII)
MAX_MODULES = 12  # of one family: the last versions


def libraries(host: Host) -> tuple[Library, ...]:
    """What is on the PATH first, then what modules offer."""
    return (*on_path(host), *_modules(host))


def launchers(host: Host) -> dict[str, str]:
    """The launchers on the PATH, each with its place. An ``mpiexec`` that is Open MPI's counts as ``mpirun``."""
    found = {name: place for name in get_args(LauncherName) if (place := host.which(name))}
    if "mpiexec" in found and runtime(host, "mpiexec") == "openmpi":
        found.setdefault("mpirun", found["mpiexec"])
        del found["mpiexec"]
    if "mpirun" in found and runtime(host, "mpirun") == "mpich":  # the same program as mpiexec
        found.setdefault("mpiexec", found["mpirun"])
        del found["mpirun"]
    return found


def runtime(host: Host, program: str) -> Abi | None:
    """Whose ranks an ``mpiexec`` or ``mpirun`` starts: those of MPICH and its kin, or of Open MPI; None: unknown."""
    said = host.ask(program, "--version") or ""
    if re.search(r"Open ?MPI|OpenRTE|PRTE|Spectrum", said):
        return "openmpi"
    return "mpich" if re.search(r"HYDRA|Hydra|Intel\(R\) MPI", said) else None


def on_path(host: Host) -> Iterator[Library]:
    """The libraries whose programs are on the PATH; one that tells its version in two ways is there once."""
    if place := host.which("mpiname"):
        found = re.search(r"MVAPICH(\S*)\s+(\d\S*)", host.ask("mpiname", "-a") or "")
        family = _mvapich(found[1], found[2]) if found else None
        if found and family:
            yield Library(_key(family, found[2]), family, found[2], "mpiname -a", prefix=_prefix(place))
    elif place := host.which("mpichversion"):
        text = host.ask("mpichversion") or ""
        found = re.search(r"^(MPICH|MVAPICH\S*|CRAY MPICH)\s+Version:\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
        if found:
            kind = found[1].upper()
            family = "mpich" if kind == "MPICH" else "cray-mpich" if "CRAY" in kind else _mvapich(kind[7:], found[2])
            yield Library(_key(family, found[2]), family, found[2], "mpichversion", prefix=_prefix(place))
    if place := host.which("ompi_info"):
        found = re.search(r"(Open MPI|Spectrum MPI):?\s*v?(\d\S*)", host.ask("ompi_info", "--version") or "")
        if found:
            family = "openmpi" if found[1] == "Open MPI" else "spectrum-mpi"
            yield Library(_key(family, found[2]), family, found[2], "ompi_info --version", prefix=_prefix(place))
    if place := host.which("impi_info"):
        found = re.search(r"Version (\d\S*)", host.ask("mpiexec", "--version") or "")
        version = found[1] if found else None
        yield Library(_key("intel-mpi", version), "intel-mpi", version, "impi_info", prefix=_prefix(place))


def _modules(host: Host) -> Iterator[Library]:
    """The MPI libraries among ``module -t avail``; on a site of module trees, those of the compiler that is loaded."""
    families: dict[Family, list[Library]] = {}
    for word in modules.available(host) or ():
        found = _MODULE.fullmatch(word)
        if found is None or (family := _MODULES.get(found[1].lower())) is None:
            continue
        version = re.match(r"\d[\w.]*", found[2] or "")
        name = version[0] if version else None
        library = Library(_key(family, found[2]), family, name, f"module {word}", modules=(word,))
        families.setdefault(family, []).append(library)
    for found_libraries in families.values():
        yield from found_libraries[-MAX_MODULES:]


def _mvapich(suffix: str, version: str) -> Family:
    """``MVAPICH2``, ``MVAPICH2-GDR``, ``MVAPICH-PLUS``; plain MVAPICH is 3 and later."""
    word = suffix.lower().strip()
    if "gdr" in word:
        return "mvapich2-gdr"
    if "plus" in word:
        return "mvapich-plus"
    return "mvapich2" if word.startswith("2") and version.startswith("2") else "mvapich"


def _key(family: str, version: str | None) -> str:
    return f"{family}-{version}" if version else family


def _prefix(program: str) -> str:
    """``/opt/mpich`` of ``/opt/mpich/bin/mpichversion``."""
    return str(PurePosixPath(program).parent.parent)
