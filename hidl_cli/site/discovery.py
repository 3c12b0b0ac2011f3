"""Detect the properties of MPI libraries, compilers and externals that a site file does not specify.

Each entry is probed in a login shell in which its modules are loaded. A result that contradicts the file is reported as
a problem. ``check_entries`` verifies what the file does specify: each path must exist and contain the version and, for
MPI, the family in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from hidl_cli.errors import MissingPrecondition, Problem
from hidl_cli.mpi import TELLERS, TRAITS, Family
from hidl_cli.site.probes import software as probes
from hidl_cli.site.probes.host import Host, ThisHost
from hidl_cli.site.probes.software import VERSION, same_version
from hidl_cli.site.schema import Compiler, External, Mpi, Site, Version

Path_ = tuple[str, ...]

_VERSION = TypeAdapter(Version)
_UNUSABLE = ":$\0\n\r"  # characters that PATH and modulefiles cannot contain


@dataclass(frozen=True)
class ProbedValue:
    """A detected value. ``path`` is its key in the site's file, and ``source`` is the program that printed it."""

    path: Path_
    value: str
    source: str


@dataclass(frozen=True)
class ProbeEntry:
    """An entry in the site's file that can be probed. ``unknown`` lists the keys that the file leaves open."""

    path: Path_
    modules: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass
class ProbeResults:
    """Detected values, contradictions, and remarks for the user. ``files`` contains each entry's modulefiles."""

    answers: list[ProbedValue] = field(default_factory=list)
    contradictions: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    files: dict[Path_, tuple[Path, ...]] = field(default_factory=dict)


def entries(site: Site, *, software: bool) -> Iterator[ProbeEntry]:
    """Return the entries that can be probed: MPI libraries and, with ``software``, compilers and externals for Spack.

    If a site lists no compilers, there is a single entry for the compiler that the default MPI library was built with.
    """
    for name, library in site.mpi.items():
        yield _entry(("mpi", name), library)
    if not software:
        return
    for name, compiler in site.compilers.items():
        yield _entry(("compilers", name), compiler)
    if not site.compilers:
        default = site.mpi.get(site.default_mpi or "")
        yield ProbeEntry(("compilers",), tuple(default.modules) if default else (), ("compilers",))
    for name, external in site.externals.items():
        if name in probes.VERSION_COMMANDS:
            yield _entry(("externals", name), external)


def probe(site: Site, wanted: Sequence[ProbeEntry], host: Host) -> ProbeResults:
    """Probe this machine for the entries of ``site``, without reading its file again."""
    results = ProbeResults()
    shells = _Shells(host)
    for entry in wanted:
        try:
            shell = shells.loaded(entry.modules)
            if len(entry.path) > 1:
                results.files[entry.path] = shell.files
            _probe_one(site, entry, ThisHost(shell.environment), shells, results)
        except MissingPrecondition as error:
            results.remarks.append(f"{'.'.join(entry.path)}: {error.message}")
    return results


@dataclass
class _Shells:
    """Login shells with loaded modules. Each shell is only started once."""

    host: Host
    started: dict[tuple[str, ...], probes.ModuleEnvironment] = field(default_factory=dict)

    def loaded(self, names: tuple[str, ...]) -> probes.ModuleEnvironment:
        """Return the shell with these modules loaded. Raises ``MissingPrecondition`` if they cannot be loaded."""
        if names not in self.started:
            self.started[names] = probes.load(self.host, names)
        return self.started[names]

    def is_there_without(self, program: str, place: str | None) -> bool:
        """Return whether a login shell finds ``program`` at ``place`` even without modules."""
        return place is not None and ThisHost(self.loaded(()).environment).which(program) == place


def _probe_one(site: Site, entry: ProbeEntry, shell: Host, shells: _Shells, results: ProbeResults) -> None:
    if entry.path == ("compilers",):
        _any_compiler(entry, shell, results)
        return
    kind, name = entry.path
    unknown = dict.fromkeys(entry.unknown)
    if kind == "mpi":
        _mpi(entry, site.mpi[name].model_copy(update=unknown), shell, shells, results)
    elif kind == "compilers":
        _compiler(entry, site.compilers[name].model_copy(update=unknown), shell, shells, results)
    else:
        _external(entry, site.externals[name].model_copy(update=unknown), shell, shells, results)


def _mpi(entry: ProbeEntry, library: Mpi, shell: Host, shells: _Shells, results: ProbeResults) -> None:
    if library.prefix:
        path = f"{library.prefix}/bin:{shell.environment.get('PATH', '')}"
        shell = ThisHost({**shell.environment, "PATH": path})
    mpicc = shell.which("mpicc")
    found = list(probes.on_path(shell))
    own = [one for one in found if mpicc and one.prefix == _prefix(mpicc)] or found
    fitting = [one for one in own if one.family == library.family]
    if fitting:
        one = fitting[0]
        _compare(entry, library.version, one.version, one.source, results)
        _learn(entry, {"version": one.version, "prefix": one.prefix}, one.source, results)
        return
    if not own or (entry.modules and mpicc and shells.is_there_without("mpicc", mpicc)) or not entry.modules:
        results.remarks.append(f"{'.'.join(entry.path)}: {_where(entry)} provides no {library.family} program")
        return
    other = own[0]
    family: Family = other.family
    results.contradictions.append(
        Problem(
            f"mpi.{entry.path[1]} is {library.family} in the site file, but {family} {other.version or ''} in "
            f"{other.prefix} on this machine ({other.source})",
            f"`family: {family}`, or modules that provide {library.family}",
            (*entry.path, "family"),
        )
    )


def _compiler(entry: ProbeEntry, compiler: Compiler, shell: Host, shells: _Shells, results: ProbeResults) -> None:
    usual = probes.PROGRAMS.get(compiler.package, ("cc", "c++", "fc"))
    given = (compiler.c, compiler.cxx, compiler.fortran)
    names = tuple(_named(compiler.prefix, one or other) for one, other in zip(given, usual, strict=True))
    found = probes.find(shell, compiler.package, (names[0], names[1], names[2]))
    if found is None:
        results.remarks.append(
            f"{'.'.join(entry.path)}: {_where(entry)} does not provide {names[0]} and {names[1]} in the same version"
        )
        return
    differs = compiler.version is not None and not probes.same_version(found.version, compiler.version)
    if differs and entry.modules and shells.is_there_without(names[0], shell.which(names[0])):
        results.remarks.append(f"{'.'.join(entry.path)}: {_where(entry)} has only the system's {names[0]}")
        return
    _compare(entry, compiler.version, found.version, found.source, results)
    if not differs:
        values = {"version": found.version, "prefix": found.prefix, "fortran": found.fortran}
        _learn(entry, values, found.source, results)


def _any_compiler(entry: ProbeEntry, shell: Host, results: ProbeResults) -> None:
    """Probe the compiler that ``mpicc`` calls, and make it the site's only compiler."""
    found = probes.of_wrapper(shell)
    if found is None:
        results.remarks.append(f"compilers: {_where(entry)} provides no known C and C++ compiler")
        return
    path = ("compilers", found.package)
    values = {"package": found.package, "version": found.version, "prefix": found.prefix, "fortran": found.fortran}
    _learn(ProbeEntry(path, entry.modules, tuple(values)), values, found.source, results)
    results.answers.append(ProbedValue(("default_compiler",), found.package, "the only compiler detected"))


def _external(entry: ProbeEntry, external: External, shell: Host, shells: _Shells, results: ProbeResults) -> None:
    name = entry.path[1]
    program = _named(external.prefix, PurePosixPath(probes.VERSION_COMMANDS[name][0]).name)
    place = shell.which(program)
    version = probes.program_version(shell, name, program) if place else None
    if place is None or version is None:
        results.remarks.append(f"{'.'.join(entry.path)}: {_where(entry)} provides no {program} that prints its version")
        return
    differs = external.version is not None and not probes.same_version(version, external.version)
    if differs and entry.modules and shells.is_there_without(program, place):
        results.remarks.append(f"{'.'.join(entry.path)}: {_where(entry)} has only the system's {program}")
        return
    source = f"{PurePosixPath(program).name} {' '.join(probes.VERSION_COMMANDS[name][1:])}"
    _compare(entry, external.version, version, source, results)
    if not differs:
        _learn(entry, {"version": version, "prefix": _prefix(place)}, source, results)


def _entry(path: Path_, model: Mpi | Compiler | External) -> ProbeEntry:
    unknown = [key for key in ("version", "prefix") if getattr(model, key) is None]
    if unknown and isinstance(model, Compiler) and model.fortran is None:
        unknown.append("fortran")
    return ProbeEntry(path, tuple(model.modules), tuple(unknown))


def _learn(entry: ProbeEntry, values: Mapping[str, str | None], source: str, results: ProbeResults) -> None:
    """Add values for unknown keys. If a value would be invalid in the site file, add a remark instead."""
    for key, value in values.items():
        if value is None or key not in entry.unknown:
            continue
        path = (*entry.path, key)
        if problem := _why_unfit(key, value):
            results.remarks.append(f"{'.'.join(path)}: {source} printed {value!r}, which {problem}")
        else:
            results.answers.append(ProbedValue(path, value, _source(key, value, source)))


def _source(key: str, value: str, source: str) -> str:
    """Return the command that printed a value. ``source`` is the command that printed the version."""
    program, _, arguments = source.partition(" ")
    if key == "fortran":
        return f"{value} {arguments}"
    return f"which {program}" if key == "prefix" and not program.startswith("$") else source


def _compare(entry: ProbeEntry, file: str | None, machine: str | None, source: str, results: ProbeResults) -> None:
    if file is not None and machine is not None and not probes.same_version(file, machine):
        results.contradictions.append(
            Problem(
                f"{'.'.join(entry.path)} is {file} in the site file, but {machine} on this machine ({source})",
                f"`version: {machine}`, or modules that provide version {file}",
                (*entry.path, "version"),
            )
        )


def _why_unfit(key: str, value: str) -> str | None:
    if key == "prefix":
        usable = value.startswith("/") and value.isprintable() and not any(one in value for one in _UNUSABLE)
        return None if usable and Path(value).is_dir() else "is not a usable directory"
    try:
        _VERSION.validate_python(value)
    except ValidationError:
        return "is not a version" if key == "version" else "is not a program name"
    return None


def _named(prefix: str | None, name: str) -> str:
    """Return the path of a program below ``prefix``.

    Without a prefix, or if the name is already a path, return the name.
    """
    return f"{prefix}/bin/{name}" if prefix and "/" not in name else name


def _prefix(program: str) -> str:
    return str(PurePosixPath(program).parent.parent)


def _where(entry: ProbeEntry) -> str:
    return f"a login shell with {' '.join(entry.modules)}" if entry.modules else "a login shell"


def changed(site: Site, answers: Sequence[ProbedValue]) -> Site:
    """Return the site with these values."""
    data: dict[str, Any] = site.model_dump()
    for answer in answers:
        here = data
        for step in answer.path[:-1]:
            here = here.setdefault(step, {})
        here[answer.path[-1]] = answer.value
    return Site.model_validate(data)


EntryVerdict = Literal["right", "wrong", "not checked"]

_CHECK_SECONDS = 20.0


@dataclass(frozen=True)
class Checked:
    """The result for one entry. ``path`` is its key in the site's file."""

    path: tuple[str, ...]
    verdict: EntryVerdict
    text: str


def check_entries(site: Site, host: Host) -> tuple[Checked, ...]:
    """Verify every compiler, external and MPI library in the site's file on this machine."""
    return (
        *(_check_compiler(name, compiler, host) for name, compiler in site.compilers.items()),
        *(_check_external(name, external, host) for name, external in site.externals.items()),
        *(found for name, mpi in site.mpi.items() for found in _check_mpi(name, mpi, host)),
    )


def _check_compiler(name: str, compiler: Compiler, host: Host) -> Checked:
    path = ("compilers", name)
    given = compiler.c or probes.PROGRAMS.get(compiler.package, ("cc",))[0]
    program = given if "/" in given or not compiler.prefix else f"{compiler.prefix}/bin/{given}"
    if not compiler.prefix and "/" not in given:
        return _by_modules(path, compiler.modules)
    if not Path(program).is_file():
        return Checked(path, "wrong", f"{program} not found")
    return _check_version(path, program, compiler.version, probes.compiler_version(host, program, compiler.package))


def _check_external(name: str, external: External, host: Host) -> Checked:
    path = ("externals", name)
    if not external.prefix:
        return _by_modules(path, external.modules)
    if not Path(external.prefix).is_dir():
        return Checked(path, "wrong", f"directory {external.prefix} not found")
    if name not in probes.VERSION_COMMANDS:
        return Checked(path, "not checked", f"{external.prefix} exists, but no known program prints its version")
    program = f"{external.prefix}/{probes.VERSION_COMMANDS[name][0]}"
    if not Path(program).exists():
        return Checked(path, "wrong", f"{program} not found")
    return _check_version(path, program, external.version, probes.program_version(host, name, program))


def _check_mpi(name: str, mpi: Mpi, host: Host) -> Iterator[Checked]:
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
        printed = host.ask(program, *TELLERS[fitting[0]].arguments, seconds=_CHECK_SECONDS)
        yield _check_version(path, program, mpi.version, printed)


def _wrappers(path: tuple[str, ...], bin_: Path, host: Host) -> Checked:
    """Verify that the compiler wrapper exists and uses the library in its own prefix."""
    mpicc = bin_ / "mpicc"
    if not mpicc.is_file():
        return Checked(path, "wrong", f"{mpicc} not found")
    shown = host.ask(str(mpicc), "-show", seconds=_CHECK_SECONDS) or host.ask(
        str(mpicc), "--showme", seconds=_CHECK_SECONDS
    )
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


def _check_version(path: tuple[str, ...], program: str, version: str | None, printed: str | None) -> Checked:
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
