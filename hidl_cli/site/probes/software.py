"""Compilers on the PATH: the programs of each of Spack's compiler packages, and what they say of themselves."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hidl_cli import process, templates
from hidl_cli.errors import MissingPrecondition, ProcessFailed
from hidl_cli.launchers import LAUNCHERS
from hidl_cli.mpi import RUNTIMES, TELLERS, TRAITS, Abi, Family, library_of_module, tell
from hidl_cli.quoting import comment
from hidl_cli.site.probes.facts import Library
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


def compiler_version(host: Host, program: str, package: str = "gcc") -> str | None:
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
    place, told = host.which(c), compiler_version(host, c, package)
    if place is None or told is None or compiler_version(host, cxx, package) != told:
        return None
    option = "-dumpfullversion" if package == "gcc" else "--version"
    with_fortran = host.which(fortran) is not None and compiler_version(host, fortran, package) == told
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


# Software that Spack can take from a system: which program prints its version, and how.


#: Who tells the version of an external: a program below its prefix, and its arguments.
TELL: Mapping[str, tuple[str, ...]] = {
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
_SECONDS_OF_EXTERNALS = 20.0
#: A version as programs print it: 1.1.1k (OpenSSL), 9.4p1 (OpenSSH), 5.0.0rc1 (Open MPI).
VERSION = re.compile(r"\d+(?:\.\d+)+(?:-?(?:rc|alpha|beta|dev|pl|[abp])\.?\d+|[a-z](?![A-Za-z0-9]))?")
_BEFORE_RELEASE = frozenset(("rc", "alpha", "beta", "dev", "a", "b"))


def program_version(host: Host, name: str, program: str) -> str | None:
    """What ``program`` says of the version of the external ``name``; None where it says none."""
    said = host.ask(program, *TELL[name][1:], seconds=_SECONDS_OF_EXTERNALS, stderr=True)
    found = VERSION.search(said or "")
    return found[0] if found else None


def same_version(one: str, other: str) -> bool:
    """Whether one version is a prefix of the other: 2.3.7 and 2.3.7-1, 5 and 5.0.2, 1.1.1 and 1.1.1k.

    A release is not its own candidate: 5.0.0 and 5.0.0rc1 differ.
    """
    short, long = sorted((re.findall(r"\d+|[a-z]+", version.lower()) for version in (one, other)), key=len)
    rest = long[len(short) :]
    is_candidate = len(rest) > 1 and rest[0] in _BEFORE_RELEASE and rest[1].isdigit()
    return long[: len(short)] == short and not is_candidate


# The modules that a site offers, and what they make of the environment (Lmod, Environment Modules, Cray's).


_SECONDS_OF_MODULES = 20.0  # a cold cache on a parallel file system
_LOAD_SECONDS = 60.0
#: What follows a name, or several: Lmod's ``(D)``, ``(L,D)``, ``<L>``; Environment Modules' ``(default)``,
#: ``(default:stable)``, ``<L>``, ``<aL>``, and ``(@)`` of an alias.
_MARK = re.compile(r"\s*(?:\((?P<round>[^()]*)\)|<(?P<angle>[^<>]*)>)\s*$")
_USER = ("HOME", "USER", "LOGNAME")
#: A module tree, which can be set up by hand; modules that are loaded may have extended it.
_TREE = ("MODULEPATH", "MODULESHOME", "LMOD_CMD", "LMOD_PKG", "LMOD_DIR", "MODULES_CMD")
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_LONGEST = 300  # characters of what a module command says


@dataclass(frozen=True)
class Offered:
    """A module that the site offers: its name with its version, as ``module load`` takes it.

    ``after``: what must be loaded before it.
    """

    name: str
    is_default: bool = False
    is_loaded: bool = False
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """The environment of a clean login shell with some modules; ``files``: theirs, and of those that they load."""

    environment: Mapping[str, str]
    files: tuple[Path, ...] = ()


def available(host: Host) -> tuple[str, ...] | None:
    """Every module's name with its version; None where there is no module command, or it gives no answer."""
    found = offered(host)
    return None if found is None else tuple(each.name for each in found)


def offered(host: Host) -> tuple[Offered, ...] | None:
    """Every module; None where there is no module command, or it gives no answer.

    On a site of module trees these are the modules that can be loaded now, beside the compiler that is loaded.
    """
    if lmod := host.environment.get("LMOD_CMD"):
        text = host.ask(lmod, "bash", "--terse", "avail", seconds=_SECONDS_OF_MODULES, stderr=True)
    elif tcl := host.environment.get("MODULES_CMD"):
        text = host.ask(tcl, "bash", "avail", "--terse", seconds=_SECONDS_OF_MODULES, stderr=True)
    else:
        return None
    return None if text is None else tuple(filter(None, map(read_name, text.splitlines())))


def read_name(line: str) -> Offered | None:
    """Read a line of ``module avail --terse``; None for a directory, the name of several modules, and an alias."""
    name, words = line.strip(), set[str]()
    while mark := _MARK.search(name):
        name = name[: mark.start()]
        words |= set(re.split(r"[:,]", mark["round"] or mark["angle"] or ""))
    if not name or name.endswith((":", "/")) or " " in name or any(word.startswith("@") for word in words):
        return None
    return Offered(name, is_default=bool(words & {"default", "D"}), is_loaded=bool(words & {"L", "aL"}))


def load(host: Host, modules: Sequence[str]) -> Loaded:
    """The environment once a clean login shell has loaded the modules, in order.

    The shell reads ``/etc/profile``, but none of the user's own files, and no module that is loaded now counts.
    Raises ``MissingPrecondition`` with the module command's own words where a module cannot be loaded.
    """
    own = host.environment
    try:
        printed = _printed(modules, _clean(own, tree=not own.get("LOADEDMODULES")))
    except MissingPrecondition:
        if not own.get("LOADEDMODULES"):
            raise
        printed = _printed(modules, _clean(own, tree=True))  # a tree that no file in /etc knows
    pairs = (entry.partition("=") for entry in printed.split("\0"))
    environment = {name: value for name, equals, value in pairs if equals}
    files = [file for file in environment.get("_LMFILES_", "").split(":") if file.startswith("/")]
    return Loaded(environment, tuple(Path(file) for file in files))


def find_command(host: Host) -> dict[str, str]:
    """The variables by which a program finds the module command; none where it has them, or there is no such command.

    A process that no login shell started (cron's, say) has none of them, though the site has modules.
    """
    if "MODULESHOME" in host.environment:
        return {}
    try:
        found = load(host, ()).environment
    except MissingPrecondition:
        return {}
    return {name: found[name] for name in _TREE if name in found} if "MODULESHOME" in found else {}


def _printed(modules: Sequence[str], environment: Mapping[str, str]) -> str:
    """The environment that ``modules`` make of this one, its variables ended by NULs."""
    script = templates.render_script("loaded_modules.sh.j2", {"modules": modules})
    command = ("bash", "--noprofile", "--norc", "-c", script)
    try:
        return process.run(command, cwd=Path("/"), env=environment, timeout=_LOAD_SECONDS).stdout
    except ProcessFailed as failure:
        said = " ".join(comment(failure.output).split())[:_LONGEST]
        what = f"module load {' '.join(modules)}" if modules else "a login shell"
        raise MissingPrecondition(f"`{what}` failed: {said or failure.message}") from failure


def _clean(environment: Mapping[str, str], *, tree: bool) -> dict[str, str]:
    """The environment that a login begins with; ``tree``: with the module tree of this one."""
    return {
        **{name: environment[name] for name in (*_USER, *(_TREE if tree else ())) if name in environment},
        "PATH": _PATH,
        "LC_ALL": "C",
        "TERM": "dumb",
        "LMOD_PAGER": "none",
    }


# MPI libraries: those on the PATH, and those that the site's modules offer; and the launchers on the PATH.


_MODULE = re.compile(r"[A-Za-z][\w.+/-]{0,120}", re.ASCII)
MAX_MODULES = 12  # of one family: the last versions


def libraries(host: Host) -> tuple[Library, ...]:
    """What is on the PATH first, then what modules offer."""
    return (*on_path(host), *of_modules(offered(host) or ()))


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


def of_modules(offered: Iterable[Offered]) -> Iterator[Library]:
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
