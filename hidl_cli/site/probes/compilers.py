"""Compilers on the PATH: the programs of each of Spack's compiler packages, and what they say of themselves."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from hidl_cli.site.probes.host import Host

#: The programs for C, C++ and Fortran, by Spack's package.
PROGRAMS: Mapping[str, tuple[str, str, str]] = {
    "gcc": ("gcc", "g++", "gfortran"),
    "llvm": ("clang", "clang++", "flang"),
    "nvhpc": ("nvc", "nvc++", "nvfortran"),
    "intel-oneapi-compilers": ("icx", "icpx", "ifx"),
    "intel-oneapi-compilers-classic": ("icc", "icpc", "ifort"),
    "aocc": ("clang", "clang++", "flang"),
    "cce": ("craycc", "crayCC", "crayftn"),
}
_SECONDS = 20.0
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_AOCC = re.compile(r"\bAOCC_(\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class FoundCompiler:
    """A compiler: ``prefix`` is above the directory of its C program; ``fortran`` is None where there is none.

    ``source``: the command that told the version.
    """

    package: str
    version: str
    prefix: str
    fortran: str | None
    source: str


def version(host: Host, program: str, package: str = "gcc") -> str | None:
    """What a compiler's program says of its version; None where it says nothing or is not there."""
    if package == "gcc":
        return _first(_VERSION, host.ask(program, "-dumpfullversion", "-dumpversion", seconds=_SECONDS))
    said = host.ask(program, "--version", seconds=_SECONDS)
    return _first(_AOCC if package == "aocc" else _VERSION, said)


def find(host: Host, package: str, names: tuple[str, str, str]) -> FoundCompiler | None:
    """The compiler on the PATH whose programs for C, C++ and Fortran have these names.

    The C++ program must be of the same version; a Fortran program of another one is not counted. None where it is not
    there, or does not say its version.
    """
    c, cxx, fortran = names
    place, told = host.which(c), version(host, c, package)
    if place is None or told is None or version(host, cxx, package) != told:
        return None
    option = "-dumpfullversion" if package == "gcc" else "--version"
    with_fortran = host.which(fortran) is not None and version(host, fortran, package) == told
    prefix = str(PurePosixPath(place).parent.parent)
    return FoundCompiler(package, told, prefix, fortran if with_fortran else None, f"{c} {option}")


def of_wrapper(host: Host) -> FoundCompiler | None:
    """The compiler that ``mpicc`` on the PATH calls, else the GCC on the PATH."""
    shown = host.ask("mpicc", "-show", seconds=_SECONDS) or host.ask("mpicc", "--showme", seconds=_SECONDS) or ""
    try:
        called = PurePosixPath(next(iter(shlex.split(shown)), "")).name
    except ValueError:  # quotes that nothing closes
        called = ""
    packages = [package for package, names in PROGRAMS.items() if names[0] == called]
    found = (find(host, package, PROGRAMS[package]) for package in sorted(packages, key="aocc".__ne__))
    return next((one for one in found if one), None) or find(host, "gcc", PROGRAMS["gcc"])


def _first(pattern: re.Pattern[str], text: str | None) -> str | None:
    found = pattern.search(text or "")
    return found[found.re.groups] if found else None
