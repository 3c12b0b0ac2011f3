"""Does a site's file tell the truth about the software of this machine: compilers, externals and MPI libraries?

Each place must exist, and what lies there must be of the version, and for MPI of the family, that the file says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hidl_cli.mpi import TELLERS, TRAITS
from hidl_cli.site.probes import software
from hidl_cli.site.probes.host import Host
from hidl_cli.site.probes.software import VERSION, same_version
from hidl_cli.site.schema import Compiler, External, Mpi, Site

Verdict = Literal["right", "wrong", "not checked"]

_SECONDS = 20.0


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
    given = compiler.c or software.PROGRAMS.get(compiler.package, ("cc",))[0]
    program = given if "/" in given or not compiler.prefix else f"{compiler.prefix}/bin/{given}"
    if not compiler.prefix and "/" not in given:
        return _by_modules(path, compiler.modules)
    if not Path(program).is_file():
        return Checked(path, "wrong", f"{program} not found")
    return _version(path, program, compiler.version, software.compiler_version(host, program, compiler.package))


def _external(name: str, external: External, host: Host) -> Checked:
    path = ("externals", name)
    if not external.prefix:
        return _by_modules(path, external.modules)
    if not Path(external.prefix).is_dir():
        return Checked(path, "wrong", f"directory {external.prefix} not found")
    if name not in software.TELL:
        return Checked(path, "not checked", f"{external.prefix} is there; no known program prints its version")
    program = f"{external.prefix}/{software.TELL[name][0]}"
    if not Path(program).exists():
        return Checked(path, "wrong", f"{program} not found")
    return _version(path, program, external.version, software.program_version(host, name, program))


def _mpi(name: str, mpi: Mpi, host: Host) -> Iterator[Checked]:
    """The prefix is there; one library alone says that it is its own, of the family and version; it owns mpicc."""
    path = ("mpi", name)
    if not mpi.prefix:
        yield _by_modules(path, mpi.modules)
        return
    bin_ = Path(mpi.prefix, "bin")
    if not bin_.is_dir():
        yield Checked(path, "wrong", f"directory {bin_} not found")
        return
    yield _wrappers(path, bin_, host)
    owners = [program for program in TELLERS if (bin_ / program).is_file()]
    fitting = [program for program in owners if program in TRAITS[mpi.family].told_by]
    if not owners:
        yield Checked(path, "not checked", f"unknown MPI library in {bin_}")
    elif len(fitting) < len(owners):
        others = ", ".join(program for program in owners if program not in fitting)
        yield Checked(path, "wrong", f"{bin_} has {others} as well: it is not {mpi.family}'s alone, or not at all")
    else:
        program = str(bin_ / fitting[0])
        said = host.ask(program, *TELLERS[fitting[0]].arguments, seconds=_SECONDS)
        yield _version(path, program, mpi.version, said)


def _wrappers(path: tuple[str, ...], bin_: Path, host: Host) -> Checked:
    """The compiler wrapper is there, and compiles for the library in its own prefix."""
    mpicc = bin_ / "mpicc"
    if not mpicc.is_file():
        return Checked(path, "wrong", f"{mpicc} not found")
    shown = host.ask(str(mpicc), "-show", seconds=_SECONDS) or host.ask(str(mpicc), "--showme", seconds=_SECONDS)
    if not shown:
        return Checked(path, "not checked", f"{mpicc} does not say what it runs")
    places = re.findall(r"-[IL](\S+)", shown)
    strangers = [place for place in places if not Path(place).resolve().is_relative_to(bin_.parent.resolve())]
    if places and len(strangers) == len(places):
        return Checked(path, "wrong", f"{mpicc} is another library's: it compiles with {strangers[0]}")
    return Checked(path, "right", f"{mpicc} is its own")


def _by_modules(path: tuple[str, ...], modules: list[str]) -> Checked:
    why = f"its modules ({', '.join(modules)}) say where it is" if modules else "its place is not given"
    return Checked(path, "not checked", why)


def _version(path: tuple[str, ...], program: str, version: str | None, said: str | None) -> Checked:
    """Compare what a program says of itself with the file; either may leave the end of the version out."""
    found = VERSION.search(said or "")
    if found is None:
        return Checked(path, "not checked", f"{program} does not print its version")
    if version is None:
        return Checked(path, "not checked", f"{program} says {found[0]}; the site's file gives no version")
    if same_version(found[0], version):
        return Checked(path, "right", f"{program} says {found[0]}")
    return Checked(path, "wrong", f"{program} says {found[0]}, and the site's file {version}")
