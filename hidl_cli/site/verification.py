"""Verify the compilers, externals and MPI libraries in a site's file on this machine.

Each path must exist and contain the version and, for MPI, the family specified in the file.
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
    """The result for one entry. ``path`` is its key in the site's file."""

    path: tuple[str, ...]
    verdict: Verdict
    text: str


def check(site: Site, host: Host) -> tuple[Checked, ...]:
    """Verify every compiler, external and MPI library in the site's file on this machine."""
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
    if name not in software.VERSION_COMMANDS:
        return Checked(path, "not checked", f"{external.prefix} exists, but no known program prints its version")
    program = f"{external.prefix}/{software.VERSION_COMMANDS[name][0]}"
    if not Path(program).exists():
        return Checked(path, "wrong", f"{program} not found")
    return _version(path, program, external.version, software.program_version(host, name, program))


def _mpi(name: str, mpi: Mpi, host: Host) -> Iterator[Checked]:
    """Verify that the prefix contains ``mpicc`` and only the MPI library and version that the site file specifies."""
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
        yield Checked(path, "wrong", f"{bin_} contains {others}, which {mpi.family} does not install")
    else:
        program = str(bin_ / fitting[0])
        printed = host.ask(program, *TELLERS[fitting[0]].arguments, seconds=_SECONDS)
        yield _version(path, program, mpi.version, printed)


def _wrappers(path: tuple[str, ...], bin_: Path, host: Host) -> Checked:
    """Verify that the compiler wrapper exists and uses the library in its own prefix."""
    mpicc = bin_ / "mpicc"
    if not mpicc.is_file():
        return Checked(path, "wrong", f"{mpicc} not found")
    shown = host.ask(str(mpicc), "-show", seconds=_SECONDS) or host.ask(str(mpicc), "--showme", seconds=_SECONDS)
    if not shown:
        return Checked(path, "not checked", f"{mpicc} does not show its command")
    places = re.findall(r"-[IL](\S+)", shown)
    foreign = [place for place in places if not Path(place).resolve().is_relative_to(bin_.parent.resolve())]
    if places and len(foreign) == len(places):
        return Checked(path, "wrong", f"{mpicc} belongs to another library: it uses {foreign[0]}")
    return Checked(path, "right", f"{mpicc} belongs to this library")


def _by_modules(path: tuple[str, ...], modules: list[str]) -> Checked:
    why = f"its modules ({', '.join(modules)}) set the location" if modules else "no location specified"
    return Checked(path, "not checked", why)


def _version(path: tuple[str, ...], program: str, version: str | None, printed: str | None) -> Checked:
    """Compare the version printed by a program with the version in the site's file.

    Either version may omit trailing components.
    """
    found = VERSION.search(printed or "")
    if found is None:
        return Checked(path, "not checked", f"{program} does not print its version")
    if version is None:
        return Checked(path, "not checked", f"{program} prints {found[0]}; the site file does not specify a version")
    if same_version(found[0], version):
        return Checked(path, "right", f"{program} prints {found[0]}")
    return Checked(path, "wrong", f"{program} prints {found[0]}, but the site file sets {version}")
