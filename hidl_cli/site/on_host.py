"""Does a site's file tell the truth about the software of this machine: compilers, externals and MPI libraries?

Each place must exist, and what lies there must be of the version, and for MPI of the family, that the file says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hidl_cli.site.probes.host import Host
from hidl_cli.site.schema import Mpi, Site
from hidl_cli.site.software import Compiler, External

Verdict = Literal["right", "wrong", "not checked"]

_SECONDS = 20.0
_NUMBER = re.compile(r"\d+(?:\.\d+)+")

#: Who tells the version of an external: a program below its prefix, and its arguments.
_TELL: dict[str, tuple[str, ...]] = {
    "python": ("bin/python3", "--version"),
    "cuda": ("bin/nvcc", "--version"),
    "cmake": ("bin/cmake", "--version"),
    "hip": ("bin/hipconfig", "--version"),
    "perl": ("bin/perl", "-e", "print $^V"),
    "gmake": ("bin/make", "--version"),
    "ninja": ("bin/ninja", "--version"),
    "hwloc": ("bin/hwloc-info", "--version"),
    "openssl": ("bin/openssl", "version"),
    "slurm": ("bin/sinfo", "--version"),
}
_USUAL = {"gcc": "gcc", "llvm": "clang", "nvhpc": "nvc", "intel-oneapi-compilers": "icx", "aocc": "clang"}
#: What tells the family and version of an MPI library, and the families that it is of.
_OWNERS = {
    "mpiname": ("mvapich2", "mvapich2-gdr", "mvapich", "mvapich-plus"),
    "mpichversion": ("mpich", "cray-mpich", "mvapich", "mvapich-plus", "mvapich2", "mvapich2-gdr"),
    "ompi_info": ("openmpi", "spectrum-mpi"),
    "impi_info": ("intel-mpi",),
}


@dataclass(frozen=True)
class Checked:
    """What was found of one entry: ``path`` is its place in the site's file."""

    path: tuple[str, ...]
    verdict: Verdict
    text: str


def check(site: Site, host: Host) -> tuple[Checked, ...]:
    """Every compiler, external and MPI library of the site, as it is on this machine."""
    return (
        *(_compiler(name, compiler, host) for name, compiler in site.compilers.items()),
        *(_external(name, external, host) for name, external in site.externals.items()),
        *(found for name, mpi in site.mpi.items() for found in _mpi(name, mpi, host)),
    )


def _compiler(name: str, compiler: Compiler, host: Host) -> Checked:
    path = ("compilers", name)
    given = compiler.c or _USUAL.get(compiler.package, "cc")
    program = given if "/" in given or not compiler.prefix else f"{compiler.prefix}/bin/{given}"
    if not compiler.prefix and "/" not in given:
        return _by_modules(path, compiler.modules)
    if not Path(program).is_file():
        return Checked(path, "wrong", f"there is no {program}")
    if compiler.package == "gcc":
        said = host.ask(program, "-dumpfullversion", "-dumpversion", seconds=_SECONDS)
    else:
        said = host.ask(program, "--version", seconds=_SECONDS)
    return _version(path, program, compiler.version, said)


def _external(name: str, external: External, host: Host) -> Checked:
    path = ("externals", name)
    if not external.prefix:
        return _by_modules(path, external.modules)
    if not Path(external.prefix).is_dir():
        return Checked(path, "wrong", f"there is no directory {external.prefix}")
    if name not in _TELL:
        return Checked(path, "not checked", f"{external.prefix} is there; hidl does not know who tells its version")
    program, *arguments = _TELL[name]
    program = f"{external.prefix}/{program}"
    if not Path(program).exists():
        return Checked(path, "wrong", f"there is no {program}")
    return _version(path, program, external.version, host.ask(program, *arguments, seconds=_SECONDS, stderr=True))


def _mpi(name: str, mpi: Mpi, host: Host) -> Iterator[Checked]:
    """The prefix is there; one library alone says that it is its own, of the family and version; it owns mpicc."""
    path = ("mpi", name)
    if not mpi.prefix:
        yield _by_modules(path, mpi.modules)
        return
    bin_ = Path(mpi.prefix, "bin")
    if not bin_.is_dir():
        yield Checked(path, "wrong", f"there is no directory {bin_}")
        return
    yield _wrappers(path, bin_, host)
    owners = [program for program in _OWNERS if (bin_ / program).is_file()]
    fitting = [program for program in owners if mpi.family in _OWNERS[program]]
    if not owners:
        yield Checked(path, "not checked", f"nothing in {bin_} tells which MPI library it is")
    elif len(fitting) < len(owners):
        others = ", ".join(program for program in owners if program not in fitting)
        yield Checked(path, "wrong", f"{bin_} has {others} as well: it is not {mpi.family}'s alone, or not at all")
    else:
        arguments = {"mpiname": ("-a",), "ompi_info": ("--version",)}.get(fitting[0], ())
        program = str(bin_ / fitting[0])
        yield _version(path, program, mpi.version, host.ask(program, *arguments, seconds=_SECONDS))


def _wrappers(path: tuple[str, ...], bin_: Path, host: Host) -> Checked:
    """The compiler wrapper is there, and compiles for the library in its own prefix."""
    mpicc = bin_ / "mpicc"
    if not mpicc.is_file():
        return Checked(path, "wrong", f"there is no {mpicc}")
    shown = host.ask(str(mpicc), "-show", seconds=_SECONDS) or host.ask(str(mpicc), "--showme", seconds=_SECONDS)
    if not shown:
        return Checked(path, "not checked", f"{mpicc} does not say what it runs")
    places = re.findall(r"-[IL](\S+)", shown)
    strangers = [place for place in places if not Path(place).resolve().is_relative_to(bin_.parent.resolve())]
    if places and len(strangers) == len(places):
        return Checked(path, "wrong", f"{mpicc} is another library's: it compiles with {strangers[0]}")
    return Checked(path, "right", f"{mpicc} is its own")


def _by_modules(path: tuple[str, ...], modules: list[str]) -> Checked:
    whence = f"its modules ({', '.join(modules)}) say where it is" if modules else "its place is not given"
    return Checked(path, "not checked", whence)


def _version(path: tuple[str, ...], program: str, version: str | None, said: str | None) -> Checked:
    """Compare what a program says of itself with the file; a shorter version in the file is one that it begins with."""
    found = _NUMBER.search(said or "")
    if found is None:
        return Checked(path, "not checked", f"{program} does not tell its version")
    if version is None:
        return Checked(path, "not checked", f"{program} says {found[0]}; the site's file gives no version")
    if found[0] == version or found[0].startswith(f"{version}."):
        return Checked(path, "right", f"{program} says {found[0]}")
    return Checked(path, "wrong", f"{program} says {found[0]}, and the site's file {version}")
