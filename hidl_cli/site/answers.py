"""What a machine answers where a site's file leaves MPI libraries, compilers and externals open.

Each entry is asked for in a login shell that has loaded its modules. An answer that contradicts the file is a problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from hidl_cli.errors import MissingPrecondition, Problem
from hidl_cli.mpi import Family
from hidl_cli.site.probes import software as compilers
from hidl_cli.site.probes import software as externals
from hidl_cli.site.probes import software as modules
from hidl_cli.site.probes import software as mpi
from hidl_cli.site.probes.host import Host, ThisHost
from hidl_cli.site.probes.software import same_version
from hidl_cli.site.schema import Compiler, External, Mpi, Site, Version

if TYPE_CHECKING:
    from hidl_cli.site.probes.host import Host
    from hidl_cli.site.schema import Site


Path_ = tuple[str, ...]

_VERSION = TypeAdapter(Version)
_UNUSABLE = ":$\0\n\r"  # in a prefix: PATH and modulefiles cannot carry them


@dataclass(frozen=True)
class Answer:
    """One learned value: ``path`` is its place in the site's file, ``source`` where it is from."""

    path: Path_
    value: str
    source: str


@dataclass(frozen=True)
class Entry:
    """An entry of the site's file that can be asked for: ``unknown`` are the keys that the file leaves open."""

    path: Path_
    modules: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass
class Asked:
    """What asking gave: answers, contradictions, and remarks for people; ``files``: the modulefiles of each entry."""

    answers: list[Answer] = field(default_factory=list)
    contradictions: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    files: dict[Path_, tuple[Path, ...]] = field(default_factory=dict)


def entries(site: Site, *, software: bool) -> Iterator[Entry]:
    """What can be asked: the MPI libraries; with ``software`` (what Spack builds with), compilers and externals too.

    A site without compilers has one entry for them all: the compiler that its MPI library was built with.
    """
    for name, library in site.mpi.items():
        yield _entry(("mpi", name), library)
    if not software:
        return
    for name, compiler in site.compilers.items():
        yield _entry(("compilers", name), compiler)
    if not site.compilers:
        default = site.mpi.get(site.default_mpi or "")
        yield Entry(("compilers",), tuple(default.modules) if default else (), ("compilers",))
    for name, external in site.externals.items():
        if name in externals.TELL:
            yield _entry(("externals", name), external)


def ask(site: Site, wanted: Sequence[Entry], host: Host) -> Asked:
    """Ask this machine for the entries of ``site``; the file itself is not looked at again."""
    asked = Asked()
    shells = _Shells(host)
    for entry in wanted:
        try:
            shell = shells.loaded(entry.modules)
            if len(entry.path) > 1:
                asked.files[entry.path] = shell.files
            _ask_one(site, entry, ThisHost(shell.environment), shells, asked)
        except MissingPrecondition as error:
            asked.remarks.append(f"{'.'.join(entry.path)}: {error.message}")
    return asked


@dataclass
class _Shells:
    """Login shells with modules loaded, each started once."""

    host: Host
    started: dict[tuple[str, ...], modules.Loaded] = field(default_factory=dict)

    def loaded(self, names: tuple[str, ...]) -> modules.Loaded:
        """The shell with these modules; ``MissingPrecondition`` where they cannot be loaded."""
        if names not in self.started:
            self.started[names] = modules.load(self.host, names)
        return self.started[names]

    def is_there_without(self, program: str, place: str | None) -> bool:
        """Whether a login shell has ``program`` in the same place without any module."""
        return place is not None and ThisHost(self.loaded(()).environment).which(program) == place


def _ask_one(site: Site, entry: Entry, shell: Host, shells: _Shells, asked: Asked) -> None:
    if entry.path == ("compilers",):
        _any_compiler(entry, shell, asked)
        return
    kind, name = entry.path
    unknown = dict.fromkeys(entry.unknown)
    if kind == "mpi":
        _mpi(entry, site.mpi[name].model_copy(update=unknown), shell, shells, asked)
    elif kind == "compilers":
        _compiler(entry, site.compilers[name].model_copy(update=unknown), shell, shells, asked)
    else:
        _external(entry, site.externals[name].model_copy(update=unknown), shell, shells, asked)


def _mpi(entry: Entry, library: Mpi, shell: Host, shells: _Shells, asked: Asked) -> None:
    if library.prefix:
        path = f"{library.prefix}/bin:{shell.environment.get('PATH', '')}"
        shell = ThisHost({**shell.environment, "PATH": path})
    mpicc = shell.which("mpicc")
    found = list(mpi.on_path(shell))
    own = [one for one in found if mpicc and one.prefix == _prefix(mpicc)] or found
    fitting = [one for one in own if one.family == library.family]
    if fitting:
        one = fitting[0]
        _compare(entry, library.version, one.version, one.source, asked)
        _learn(entry, {"version": one.version, "prefix": one.prefix}, one.source, asked)
        return
    if not own or (entry.modules and mpicc and shells.is_there_without("mpicc", mpicc)) or not entry.modules:
        asked.remarks.append(f"{'.'.join(entry.path)}: {_where(entry)} has no program of {library.family}")
        return
    other = own[0]
    family: Family = other.family
    asked.contradictions.append(
        Problem(
            f"mpi.{entry.path[1]} is {library.family} in the site file, but {family} {other.version or ''} in "
            f"{other.prefix} on this machine ({other.source})",
            f"`family: {family}`, or the modules of {library.family}",
            (*entry.path, "family"),
        )
    )


def _compiler(entry: Entry, compiler: Compiler, shell: Host, shells: _Shells, asked: Asked) -> None:
    usual = compilers.PROGRAMS.get(compiler.package, ("cc", "c++", "fc"))
    given = (compiler.c, compiler.cxx, compiler.fortran)
    names = tuple(_named(compiler.prefix, one or other) for one, other in zip(given, usual, strict=True))
    found = compilers.find(shell, compiler.package, (names[0], names[1], names[2]))
    if found is None:
        asked.remarks.append(
            f"{'.'.join(entry.path)}: {_where(entry)} has no {names[0]} and {names[1]} of the same version"
        )
        return
    differs = compiler.version is not None and not same_version(found.version, compiler.version)
    if differs and entry.modules and shells.is_there_without(names[0], shell.which(names[0])):
        asked.remarks.append(f"{'.'.join(entry.path)}: {_where(entry)} has only the system's {names[0]}")
        return
    _compare(entry, compiler.version, found.version, found.source, asked)
    if not differs:
        values = {"version": found.version, "prefix": found.prefix, "fortran": found.fortran}
        _learn(entry, values, found.source, asked)


def _any_compiler(entry: Entry, shell: Host, asked: Asked) -> None:
    """The compiler of the MPI library that ``mpicc`` belongs to, as the site's only one."""
    found = compilers.of_wrapper(shell)
    if found is None:
        asked.remarks.append(f"compilers: {_where(entry)} has no known C and C++ compiler")
        return
    path = ("compilers", found.package)
    values = {"package": found.package, "version": found.version, "prefix": found.prefix, "fortran": found.fortran}
    _learn(Entry(path, entry.modules, tuple(values)), values, found.source, asked)
    asked.answers.append(Answer(("default_compiler",), found.package, "the only one queried"))


def _external(entry: Entry, external: External, shell: Host, shells: _Shells, asked: Asked) -> None:
    name = entry.path[1]
    program = _named(external.prefix, PurePosixPath(externals.TELL[name][0]).name)
    place = shell.which(program)
    told = externals.program_version(shell, name, program) if place else None
    if place is None or told is None:
        asked.remarks.append(f"{'.'.join(entry.path)}: {_where(entry)} has no {program} that prints its version")
        return
    differs = external.version is not None and not same_version(told, external.version)
    if differs and entry.modules and shells.is_there_without(program, place):
        asked.remarks.append(f"{'.'.join(entry.path)}: {_where(entry)} has only the system's {program}")
        return
    source = f"{PurePosixPath(program).name} {' '.join(externals.TELL[name][1:])}"
    _compare(entry, external.version, told, source, asked)
    if not differs:
        _learn(entry, {"version": told, "prefix": _prefix(place)}, source, asked)


def _entry(path: Path_, model: Mpi | Compiler | External) -> Entry:
    unknown = [key for key in ("version", "prefix") if getattr(model, key) is None]
    if unknown and isinstance(model, Compiler) and model.fortran is None:
        unknown.append("fortran")
    return Entry(path, tuple(model.modules), tuple(unknown))


def _learn(entry: Entry, values: Mapping[str, str | None], source: str, asked: Asked) -> None:
    """Take the values of unknown keys; what no file could hold is a remark, not an answer."""
    for key, value in values.items():
        if value is None or key not in entry.unknown:
            continue
        path = (*entry.path, key)
        if problem := _why_unfit(key, value):
            asked.remarks.append(f"{'.'.join(path)}: {source} printed {value!r}, which {problem}")
        else:
            asked.answers.append(Answer(path, value, _source(key, value, source)))


def _source(key: str, value: str, source: str) -> str:
    """The source of a value: the place and the Fortran program have programs of their own."""
    program, _, arguments = source.partition(" ")
    if key == "fortran":
        return f"{value} {arguments}"
    return f"which {program}" if key == "prefix" and not program.startswith("$") else source


def _compare(entry: Entry, file: str | None, machine: str | None, source: str, asked: Asked) -> None:
    if file is not None and machine is not None and not same_version(file, machine):
        asked.contradictions.append(
            Problem(
                f"{'.'.join(entry.path)} is {file} in the site file, but {machine} on this machine ({source})",
                f"`version: {machine}`, or the modules of {file}",
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
    """A program below ``prefix``; without one, or where it has a place of its own, as it is called."""
    return f"{prefix}/bin/{name}" if prefix and "/" not in name else name


def _prefix(program: str) -> str:
    return str(PurePosixPath(program).parent.parent)


def _where(entry: Entry) -> str:
    return f"a login shell with {' '.join(entry.modules)}" if entry.modules else "a login shell"


def changed(site: Site, answers: Sequence[Answer]) -> Site:
    """The site with these answers in it."""
    data: dict[str, Any] = site.model_dump()
    for answer in answers:
        here = data
        for step in answer.path[:-1]:
            here = here.setdefault(step, {})
        here[answer.path[-1]] = answer.value
    return Site.model_validate(data)


# A site completed by its own machine: what its file leaves open is asked, shown and kept when stacks are installed.
