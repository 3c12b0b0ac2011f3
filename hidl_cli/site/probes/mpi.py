"""MPI libraries: those on the PATH, and those that the site's modules offer; and the launchers on the PATH."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from hidl_cli.launchers import LAUNCHERS
from hidl_cli.mpi import RUNTIMES, TELLERS, TRAITS, Abi, Family, library_of_module, tell
from hidl_cli.site.probes import modules
from hidl_cli.site.probes.facts import Library
from hidl_cli.site.probes.host import Host

_MODULE = re.compile(r"[A-Za-z][\w.+/-]{0,120}", re.ASCII)
MAX_MODULES = 12  # of one family: the last versions


def libraries(host: Host) -> tuple[Library, ...]:
    """What is on the PATH first, then what modules offer."""
    return (*on_path(host), *of_modules(modules.offered(host) or ()))


def launchers(host: Host) -> dict[str, str]:
    """The launchers on the PATH, each with its place. An ``mpiexec`` that is Open MPI's counts as ``mpirun``."""
    found: dict[str, str] = {}
    known = dict(LAUNCHERS.usable())
    for name, traits in known.items():
        place = host.which(traits.program or name)
        others = [other.place for other in known.values() if other.place and other.place != traits.place]
        if place and re.search(traits.place or "", place) and not any(re.search(other, place) for other in others):
            found[name] = place
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
    return next((abi for abi, pattern in RUNTIMES.items() if re.search(pattern, said)), None)


def on_path(host: Host) -> Iterator[Library]:
    """The libraries whose programs are on the PATH; one that reports its version in two ways is there once."""
    of_mpich = next((program for program in ("mpiname", "mpichversion") if host.which(program)), None)
    if of_mpich:
        yield from _libraries_of(host, of_mpich)
    else:
        yield from _of_loaded_modules(host)
    yield from _libraries_of(host, "ompi_info")
    if place := host.which("impi_info"):
        found = re.search(r"Version (\d\S*)", host.ask("mpiexec", "--version") or "")
        version = found[1] if found else None
        yield Library(_key("intel-mpi", version), "intel-mpi", version, "impi_info", prefix=_prefix(place))


def _libraries_of(host: Host, program: str) -> Iterator[Library]:
    """The library that a program of ``TELLERS`` is of."""
    arguments = TELLERS[program].arguments
    place = host.which(program)
    found = tell(program, host.ask(program, *arguments) or "") if place else None
    if place and found:
        family, version = found
        yield Library(_key(family, version), family, version, " ".join([program, *arguments]), prefix=_prefix(place))


def _of_loaded_modules(host: Host) -> Iterator[Library]:
    """The libraries that a loaded module names by its variables."""
    for family, traits in TRAITS.items():
        name, directory = traits.module_variables or ("", "")
        if version := host.environment.get(name):
            prefix = host.environment.get(directory)
            yield Library(_key(family, version), family, version, f"${name}", prefix=prefix)


def of_modules(offered: Iterable[modules.Offered]) -> Iterator[Library]:
    """The MPI libraries among modules; on a site of module trees, those of the compiler that is loaded."""
    families: dict[Family, list[tuple[Library, bool]]] = {}
    for module in offered:
        told = library_of_module(module.name) if _MODULE.fullmatch(module.name) else None
        if told is None:
            continue
        marks = [word for word, holds in (("default", module.is_default), ("loaded", module.is_loaded)) if holds]
        source = f"module {module.name}" + (f" ({', '.join(marks)})" if marks else "")
        key = _key(told.family, told.rest)
        library = Library(key, told.family, told.version, source, modules=(*module.after, module.name))
        families.setdefault(told.family, []).append((library, bool(marks)))
    for found in families.values():
        last = len(found) - MAX_MODULES
        yield from (library for number, (library, is_marked) in enumerate(found) if is_marked or number >= last)


def _key(family: str, version: str | None) -> str:
    return f"{family}-{version}" if version else family


def _prefix(program: str) -> str:
    """``/opt/mpich`` of ``/opt/mpich/bin/mpichversion``."""
    return str(PurePosixPath(program).parent.parent)
