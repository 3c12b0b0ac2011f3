"""Probe installed software: compilers, externals for Spack, modules, and MPI libraries."""

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
from hidl_cli.site.probes.facts import ProbedLibrary
from hidl_cli.site.probes.host import Host

#: Names of the C, C++ and Fortran compilers, by Spack package.
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
    """A compiler; ``prefix`` contains its ``bin`` directory, and ``source`` is the command that printed the version.

    ``fortran`` is None if there is no Fortran compiler with the same version.
    """

    package: str
    version: str
    prefix: str
    fortran: str | None
    source: str


def compiler_version(host: Host, program: str, package: str = "gcc") -> str | None:
    """Return the version that a compiler prints, or None if it prints no version or is missing."""
    if package == "gcc":
        return _first(_VERSION, host.ask(program, "-dumpfullversion", "-dumpversion", seconds=_SECONDS))
    printed = host.ask(program, "--version", seconds=_SECONDS)
    return _first(_AOCC if package == "aocc" else _VERSION, printed)


def find(host: Host, package: str, names: tuple[str, str, str]) -> FoundCompiler | None:
    """Find a compiler on PATH by the names of its C, C++ and Fortran programs.

    The C++ program must have the same version as the C program; a Fortran program with another version is ignored.
    Returns None if the compiler is missing or does not print its version.
    """
    c, cxx, fortran = names
    path, version = host.which(c), compiler_version(host, c, package)
    if path is None or version is None or compiler_version(host, cxx, package) != version:
        return None
    option = "-dumpfullversion" if package == "gcc" else "--version"
    with_fortran = host.which(fortran) is not None and compiler_version(host, fortran, package) == version
    prefix = str(PurePosixPath(path).parent.parent)
    return FoundCompiler(package, version, prefix, fortran if with_fortran else None, f"{c} {option}")


def of_wrapper(host: Host) -> FoundCompiler | None:
    """Return the compiler that ``mpicc`` on PATH runs, or else the GCC on PATH."""
    shown = host.ask("mpicc", "-show", seconds=_SECONDS) or host.ask("mpicc", "--showme", seconds=_SECONDS) or ""
    try:
        called = PurePosixPath(next(iter(shlex.split(shown)), "")).name
    except ValueError:  # unbalanced quotes
        called = ""
    packages = [package for package, names in PROGRAMS.items() if names[0] == called]
    found = (find(host, package, PROGRAMS[package]) for package in sorted(packages, key="aocc".__ne__))
    return next((one for one in found if one), None) or find(host, "gcc", PROGRAMS["gcc"])


def _first(pattern: re.Pattern[str], text: str | None) -> str | None:
    found = pattern.search(text or "")
    return found[found.re.groups] if found else None


# Software that Spack can use from the system, and how it prints its version.


#: Commands that print an external's version. The program's path is relative to the external's prefix.
VERSION_COMMANDS: Mapping[str, tuple[str, ...]] = {
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
#: A version as printed by programs: 1.1.1k (OpenSSL), 9.4p1 (OpenSSH), 5.0.0rc1 (Open MPI).
VERSION = re.compile(r"\d+(?:\.\d+)+(?:-?(?:rc|alpha|beta|dev|pl|[abp])\.?\d+|[a-z](?![A-Za-z0-9]))?")
_BEFORE_RELEASE = frozenset(("rc", "alpha", "beta", "dev", "a", "b"))


def program_version(host: Host, name: str, program: str) -> str | None:
    """Return the version that ``program`` prints for the external ``name``, or None."""
    printed = host.ask(program, *VERSION_COMMANDS[name][1:], seconds=_SECONDS_OF_EXTERNALS, stderr=True)
    found = VERSION.search(printed or "")
    return found[0] if found else None


def same_version(one: str, other: str) -> bool:
    """Return whether one version is a prefix of the other, as for 2.3.7 and 2.3.7-1, 5 and 5.0.2, 1.1.1 and 1.1.1k.

    A release and its candidates are different: 5.0.0 is not the same as 5.0.0rc1.
    """
    short, long = sorted((re.findall(r"\d+|[a-z]+", version.lower()) for version in (one, other)), key=len)
    rest = long[len(short) :]
    is_candidate = len(rest) > 1 and rest[0] in _BEFORE_RELEASE and rest[1].isdigit()
    return long[: len(short)] == short and not is_candidate


# Site modules and the environments that they set up (Lmod, Environment Modules, Cray's modules).


_SECONDS_OF_MODULES = 20.0  # slow with a cold cache on a parallel file system
_LOAD_SECONDS = 60.0
#: Marks after a name: ``(D)``, ``(L,D)`` and ``<L>`` in Lmod; ``(default)``, ``(default:stable)``, ``<L>``, ``<aL>``
#: and ``(@)`` (for an alias) in Environment Modules.
_MARK = re.compile(r"\s*(?:\((?P<round>[^()]*)\)|<(?P<angle>[^<>]*)>)\s*$")
_USER = ("HOME", "USER", "LOGNAME")
#: Variables that define a module tree. Users can set them, and loaded modules may have extended them.
_TREE = ("MODULEPATH", "MODULESHOME", "LMOD_CMD", "LMOD_PKG", "LMOD_DIR", "MODULES_CMD")
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_LONGEST = 300  # maximum length of a module command's output in a message


@dataclass(frozen=True)
class AvailableModule:
    """A site module, with its name for ``module load``. The modules in ``after`` must be loaded first."""

    name: str
    is_default: bool = False
    is_loaded: bool = False
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModuleEnvironment:
    """The environment of a clean login shell with modules loaded; ``files`` lists all loaded modulefiles."""

    environment: Mapping[str, str]
    files: tuple[Path, ...] = ()


def available(host: Host) -> tuple[str, ...] | None:
    """Return the names of all modules with their versions, or None if there is no module command or it fails."""
    found = offered(host)
    return None if found is None else tuple(each.name for each in found)


def offered(host: Host) -> tuple[AvailableModule, ...] | None:
    """Return all modules, or None if there is no module command or it fails.

    In a module hierarchy, only modules that can be loaded now are included.
    """
    if lmod := host.environment.get("LMOD_CMD"):
        text = host.ask(lmod, "bash", "--terse", "avail", seconds=_SECONDS_OF_MODULES, stderr=True)
    elif tcl := host.environment.get("MODULES_CMD"):
        text = host.ask(tcl, "bash", "avail", "--terse", seconds=_SECONDS_OF_MODULES, stderr=True)
    else:
        return None
    return None if text is None else tuple(filter(None, map(read_name, text.splitlines())))


def read_name(line: str) -> AvailableModule | None:
    """Parse a line of ``module avail --terse``. Returns None for directories, groups of versions, and aliases."""
    name, words = line.strip(), set[str]()
    while mark := _MARK.search(name):
        name = name[: mark.start()]
        words |= set(re.split(r"[:,]", mark["round"] or mark["angle"] or ""))
    if not name or name.endswith((":", "/")) or " " in name or any(word.startswith("@") for word in words):
        return None
    return AvailableModule(name, is_default=bool(words & {"default", "D"}), is_loaded=bool(words & {"L", "aL"}))


def load(host: Host, modules: Sequence[str]) -> ModuleEnvironment:
    """Load modules in a clean login shell, in order, and return the shell's environment.

    The shell reads ``/etc/profile``, but none of the user's files, and starts without the currently loaded modules.
    Raises ``MissingPrecondition`` with the module command's message if a module cannot be loaded.
    """
    own = host.environment
    try:
        printed = _printed(modules, _clean(own, tree=not own.get("LOADEDMODULES")))
    except MissingPrecondition:
        if not own.get("LOADEDMODULES"):
            raise
        printed = _printed(modules, _clean(own, tree=True))  # the files in /etc might not set up the module tree
    pairs = (entry.partition("=") for entry in printed.split("\0"))
    environment = {name: value for name, equals, value in pairs if equals}
    files = [file for file in environment.get("_LMFILES_", "").split(":") if file.startswith("/")]
    return ModuleEnvironment(environment, tuple(Path(file) for file in files))


def find_command(host: Host) -> dict[str, str]:
    """Return the variables that make the module command available.

    The result is empty if the variables are already set or if there is no module command. Processes that were not
    started by a login shell, such as cron jobs, lack these variables even if the site has modules.
    """
    if "MODULESHOME" in host.environment:
        return {}
    try:
        found = load(host, ()).environment
    except MissingPrecondition:
        return {}
    return {name: found[name] for name in _TREE if name in found} if "MODULESHOME" in found else {}


def _printed(modules: Sequence[str], environment: Mapping[str, str]) -> str:
    """Load ``modules`` in this environment and print the result, with variables separated by NUL."""
    script = templates.render_script("loaded_modules.sh.j2", {"modules": modules})
    command = ("bash", "--noprofile", "--norc", "-c", script)
    try:
        return process.run(command, cwd=Path("/"), env=environment, timeout=_LOAD_SECONDS).stdout
    except ProcessFailed as failure:
        output = " ".join(comment(failure.output).split())[:_LONGEST]
        what = f"module load {' '.join(modules)}" if modules else "a login shell"
        raise MissingPrecondition(f"`{what}` failed: {output or failure.message}") from failure


def _clean(environment: Mapping[str, str], *, tree: bool) -> dict[str, str]:
    """Return a login shell's initial environment, including the current module tree if ``tree`` is set."""
    return {
        **{name: environment[name] for name in (*_USER, *(_TREE if tree else ())) if name in environment},
        "PATH": _PATH,
        "LC_ALL": "C",
        "TERM": "dumb",
        "LMOD_PAGER": "none",
    }


# MPI libraries on PATH or in modules, and the launchers on PATH.


_MODULE = re.compile(r"[A-Za-z][\w.+/-]{0,120}", re.ASCII)
MAX_MODULES = 12  # maximum number of modules per MPI family; the latest versions are kept


def libraries(host: Host) -> tuple[ProbedLibrary, ...]:
    """Return the MPI libraries on PATH, followed by those in modules."""
    return (*on_path(host), *of_modules(offered(host) or ()))


def launchers(host: Host) -> dict[str, str]:
    """Return the launchers on PATH and their paths. Open MPI's ``mpiexec`` is listed as ``mpirun``."""
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
    if "mpirun" in found and runtime(host, "mpirun") == "mpich":  # MPICH's mpirun is its mpiexec
        found.setdefault("mpiexec", found["mpirun"])
        del found["mpirun"]
    return found


def runtime(host: Host, program: str) -> Abi | None:
    """Return the ABI (MPICH's or Open MPI's) of the ranks started by ``mpiexec`` or ``mpirun``, or None if unknown."""
    printed = host.ask(program, "--version") or ""
    return next((abi for abi, pattern in RUNTIMES.items() if re.search(pattern, printed)), None)


def on_path(host: Host) -> Iterator[ProbedLibrary]:
    """Yield the MPI libraries with programs on PATH, without duplicates."""
    of_mpich = next((program for program in ("mpiname", "mpichversion") if host.which(program)), None)
    if of_mpich:
        yield from _libraries_of(host, of_mpich)
    else:
        yield from _of_loaded_modules(host)
    yield from _libraries_of(host, "ompi_info")
    if place := host.which("impi_info"):
        found = re.search(r"Version (\d\S*)", host.ask("mpiexec", "--version") or "")
        version = found[1] if found else None
        yield ProbedLibrary(_key("intel-mpi", version), "intel-mpi", version, "impi_info", prefix=_prefix(place))


def _libraries_of(host: Host, program: str) -> Iterator[ProbedLibrary]:
    """Yield the MPI library to which ``program``, one of ``TELLERS``, belongs, if the host has the program."""
    arguments = TELLERS[program].arguments
    place = host.which(program)
    found = tell(program, host.ask(program, *arguments) or "") if place else None
    if place and found:
        family, version = found
        yield ProbedLibrary(
            _key(family, version), family, version, " ".join([program, *arguments]), prefix=_prefix(place)
        )


def _of_loaded_modules(host: Host) -> Iterator[ProbedLibrary]:
    """Yield the libraries identified by the variables of loaded modules."""
    for family, traits in TRAITS.items():
        name, directory = traits.module_variables or ("", "")
        if version := host.environment.get(name):
            prefix = host.environment.get(directory)
            yield ProbedLibrary(_key(family, version), family, version, f"${name}", prefix=prefix)


def of_modules(offered: Iterable[AvailableModule]) -> Iterator[ProbedLibrary]:
    """Yield the modules that provide an MPI library; in a module hierarchy, only those for the loaded compiler."""
    families: dict[Family, list[tuple[ProbedLibrary, bool]]] = {}
    for module in offered:
        recognized = library_of_module(module.name) if _MODULE.fullmatch(module.name) else None
        if recognized is None:
            continue
        marks = [word for word, holds in (("default", module.is_default), ("loaded", module.is_loaded)) if holds]
        source = f"module {module.name}" + (f" ({', '.join(marks)})" if marks else "")
        key = _key(recognized.family, recognized.rest)
        required = (*module.after, module.name)
        library = ProbedLibrary(key, recognized.family, recognized.version, source, modules=required)
        families.setdefault(recognized.family, []).append((library, bool(marks)))
    for found in families.values():
        last = len(found) - MAX_MODULES
        yield from (library for number, (library, is_marked) in enumerate(found) if is_marked or number >= last)


def _key(family: str, version: str | None) -> str:
    return f"{family}-{version}" if version else family


def _prefix(program: str) -> str:
    """Return ``/opt/mpich`` for ``/opt/mpich/bin/mpichversion``."""
    return str(PurePosixPath(program).parent.parent)
