"""Spack on this machine: its installation and directories, the Python that runs it, and the software that it can use.

The compiler, Python and the MPI library are detected only for sites with ``spack: {detect: true}``.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli import paths
from hidl_cli.errors import HidlError, MissingPrecondition
from hidl_cli.site.probes import software
from hidl_cli.site.probes.host import Host
from hidl_cli.site.schema import Compiler, External, Mpi, Site
from hidl_cli.stack.order import InstallStep, Progress
from hidl_cli.stack.target import Target

if TYPE_CHECKING:
    from hidl_cli.stack.providers.wheels import WheelInstaller


#: The variable that names a clone of spack-packages.
PLACES_VARIABLE = "HIDL_SPACK_PACKAGES"


@dataclass(frozen=True)
class Places:
    """The directories of an environment.

    ``builtin`` is a local repository of Spack's packages; if it is None, Spack clones the repository. ``misc`` contains
    Spack's package indexes, which dry runs also use.
    """

    root: Path
    builtin: Path | None
    own: Path
    stage: Path
    misc: Path
    mirror: Path | None = None

    @property
    def spack(self) -> Path:
        """The directory of Spack's store, sources and stages."""
        return self.root / "spack"

    @property
    def store(self) -> Path:
        """The root of Spack's install tree."""
        return self.spack / "store"

    @property
    def sources(self) -> Path:
        """Spack's cache of fetched archives."""
        return self.spack / "sources"

    @property
    def clone(self) -> Path:
        """The clone of spack-packages that Spack creates if the user does not have one."""
        return self.spack / "packages"


_PADDING = "__spack_path_placeholder__"


def padded(root: Path, length: int) -> Path:
    """Return the package directory below ``root``. Spack pads its path to ``length`` (``padded_length``)."""
    missing = length - len(str(root)) - 1
    if missing <= 0:
        return root
    path = f"{_PADDING}/" * (missing // (len(_PADDING) + 1)) + _PADDING[: missing % (len(_PADDING) + 1)]
    return root / (f"{path[:-1]}_" if path.endswith("/") else path)


def padded_tree(root: Path) -> Path:
    """Return the directory below ``root`` that contains the package index.

    Another Spack instance may have padded its path.
    """
    nested = (each for each in root.glob("_*") if f"{_PADDING}_".startswith(each.name) and each.is_dir())
    found = [tree for each in nested if index_of(tree := padded_tree(each)).is_file()]
    if index_of(root).is_file() or not found:
        return root
    return max(found, key=lambda tree: index_of(tree).stat().st_mtime)


def index_of(tree: Path) -> Path:
    """Return the index of the packages in an install tree."""
    return tree / ".spack-db" / "index.json"


def cache() -> Path:
    """Return the directory for files that can be recreated."""
    return paths.user_cache() / "spack"


def places(site: Site, root: Path, mirror: Path | None = None) -> Places:
    """Return the directories for a site below ``root``. An offline mirror may provide the package repository."""
    stage = site.spack.stage
    brought = mirror / "spack-packages" if mirror else None
    return Places(
        root=root,
        builtin=_builtin(site, brought),
        own=paths.shipped() / "recipes" / "spack_repo" / "hidl",
        stage=Path(os.path.expandvars(stage)).expanduser() if stage else root / "spack" / "stage",
        misc=cache() / "misc",
        mirror=mirror,
    )


def _builtin(site: Site, brought: Path | None) -> Path | None:
    """Return Spack's package repository: the given directory, or the repository in a given clone of spack-packages.

    Raises ``MissingPrecondition`` if the given directory is neither.
    """
    named = (
        os.environ.get(PLACES_VARIABLE)
        or (str(brought) if brought and brought.is_dir() else None)
        or site.spack.packages
    )
    if not named:
        return None
    place = Path(os.path.expandvars(named)).expanduser().absolute()
    inside = place / "repos" / "spack_repo" / "builtin"
    found = inside if inside.is_dir() else place
    if not (found / "repo.yaml").is_file():
        origin = (
            f"${PLACES_VARIABLE}" if os.environ.get(PLACES_VARIABLE) else "`spack.packages` of the site or the mirror"
        )
        raise MissingPrecondition(
            f"{origin}: {place} is not a Spack package repository",
            hint="set it to a clone of spack-packages, or to the directory with repo.yaml in a clone",
        )
    return found


# The Python that runs Spack. It includes clingo, which Spack would otherwise fetch from GitHub.


#: Spack's solver, as a requirement.
CLINGO = "clingo==5.8.3"
NAMED = "SPACK_PYTHON"


def without_clingo(target: Target) -> Path:
    """Return an interpreter for Spack commands that do not resolve anything and therefore do not need clingo."""
    named = os.environ.get(NAMED)
    made = _made(target) / "bin" / "python"
    return Path(named) if named else made if made.exists() else target.interpreter


def made_python() -> Path | None:
    """Return the interpreter of the newest environment with clingo that hidl has created.

    Returns None if there is none, or if the user specifies an interpreter.
    """
    found = sorted(cache().glob(f"python-*-{CLINGO.rpartition('=')[2]}/bin/python"))
    return found[-1] if found and not os.environ.get(NAMED) else None


def _made(target: Target) -> Path:
    return cache() / f"python-{target.python}-{target.platform}-{CLINGO.rpartition('=')[2]}"


def python(
    target: Target, uv: WheelInstaller, log: Path, progress: Progress, *, offline: bool, wheels: Path | None
) -> Path:
    """Return the interpreter that runs Spack: $SPACK_PYTHON, or else an interpreter with clingo that hidl creates once.

    Args:
        target: The platform and Python of the stack.
        uv: The wheel installer.
        log: The file that output is appended to.
        progress: Reports the step.
        offline: Whether clingo must come from ``wheels`` or uv's cache.
        wheels: A directory to search first for the clingo wheel, if any.

    Raises:
        MissingPrecondition: clingo cannot be installed.
    """
    from uv import find_uv_bin

    named = os.environ.get(NAMED)
    if named:
        return Path(named)
    made = _made(target)
    if (made / "bin" / "python").exists():
        return made / "bin" / "python"
    made.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=made.parent) as directory,
        progress.step("create a Python environment with clingo for Spack", log),
    ):
        beside = Path(directory, "python")
        # The environment is moved later. Its scripts would not work then, but Spack only uses the interpreter.
        options = ("--no-project", "--relocatable", "--python", str(target.interpreter))
        uv.run(InstallStep("make it", (find_uv_bin(), "venv", *options, str(beside))), log)
        asked = (*(("--find-links", str(wheels)) if wheels else ()), *(("--offline",) if offline else ()), CLINGO)
        try:
            uv.run(uv.add("install clingo", beside / "bin" / "python", *asked), log)
        except HidlError as error:
            raise MissingPrecondition(
                f"Spack requires clingo, which cannot be installed: {error.message}",
                hint="copy its wheel here (hidl stack fetch), or set SPACK_PYTHON to a Python with clingo",
            ) from error
        beside.replace(made)
    return made / "bin" / "python"


#: Variants of an external Python: the parts of the standard library that depend on a system library.
_VARIANTS = "+bz2+ctypes+lzma+pyexpat+sqlite3+ssl+zlib"
_SYSTEM = re.compile(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', re.MULTILINE)


def detected(site: Site, target: Target, host: Host) -> Site:
    """Return the site, with the compiler, Python and MPI library of this machine where its file specifies none."""
    if not site.spack.detect:
        return site
    changes: dict[str, object] = {}
    if not site.compilers and (compiler := _gcc(host)):
        changes |= {"compilers": {"gcc": compiler}, "default_compiler": "gcc"}
    if "python" not in site.externals and (python := _python(host, target)):
        changes["externals"] = {**site.externals, "python": python}
    if site.default_mpi is None and (library := _mpi(host)):
        changes |= {"mpi": {**site.mpi, library.family: library}, "default_mpi": library.family}
    return site.model_copy(update=changes)


def operating_system(host: Host) -> str:
    """Return the operating system as named by Spack 0.23, such as debian12, rhel8 or ubuntu22.04."""
    found: dict[str, str] = dict(_SYSTEM.findall(host.read("/etc/os-release")))
    name, version = found.get("ID", "linux"), found.get("VERSION_ID", "")
    return name + (version if name == "ubuntu" else version.partition(".")[0])


def _gcc(host: Host) -> Compiler | None:
    """Return the GCC on PATH if it has a C++ compiler of the same version."""
    found = software.find(host, "gcc", software.PROGRAMS["gcc"])
    if found is None:
        return None
    return Compiler(
        package="gcc", version=found.version, prefix=found.prefix, c="gcc", cxx="g++", fortran=found.fortran
    )


def _python(host: Host, target: Target) -> External | None:
    """Return the Python installation that stacks are built on, rather than a virtual environment based on it."""
    code = "import sys, platform; print(platform.python_version(), sys.base_prefix)"
    printed = (host.ask(str(target.interpreter), "-I", "-c", code) or "").split(maxsplit=1)
    return External(version=printed[0], prefix=printed[1].strip(), variants=_VARIANTS) if len(printed) == 2 else None


def _mpi(host: Host) -> Mpi | None:
    """Return the MPI library on PATH if ``mpicc``, ``mpiexec`` and the program for its version share a prefix."""
    found = [library for library in software.on_path(host) if library.prefix]
    mpicc = host.which("mpicc")
    owners = [one for one in found if mpicc and str(Path(mpicc).parent.parent) == one.prefix]
    if len(found) != 1 or len(owners) != 1:
        return None
    return Mpi(family=owners[0].family, version=owners[0].version, prefix=owners[0].prefix)


# The Spack installation. Its version is read without running it.


#: The variable that specifies Spack, as an alternative to --spack.
SPACK_VARIABLE = "HIDL_SPACK"
#: The first supported release, and the first in which compilers are packages.
OLDEST = (0, 23)
COMPILERS_ARE_PACKAGES = (1, 0)

_VERSION = re.compile(r'^__version__ = "(\d+)\.(\d+)([^"]*)"$', re.MULTILINE)


@dataclass(frozen=True)
class Instance:
    """A Spack installation and its version; ``release`` consists of the version's first two numbers."""

    root: Path
    version: str
    release: tuple[int, int]

    @property
    def program(self) -> Path:
        """The ``spack`` command."""
        return self.root / "bin" / "spack"


def find(site: Site, given: Path | None, environ: Mapping[str, str]) -> Instance:
    """Return the Spack instance given by --spack, $HIDL_SPACK, the site or $SPACK_ROOT, or else the one on PATH.

    Raises ``MissingPrecondition`` if none is found or it is too old.
    """
    on_path = shutil.which("spack", path=environ.get("PATH"))
    places = (
        ("--spack", given),
        (f"${SPACK_VARIABLE}", environ.get(SPACK_VARIABLE)),
        (f"`spack.root` of site {site.name}", site.spack.root),
        ("$SPACK_ROOT", environ.get("SPACK_ROOT")),
        ("PATH", Path(on_path).resolve().parents[1] if on_path else None),
    )
    for origin, place in places:
        if place:
            return _at(Path(os.path.expandvars(place)).expanduser().absolute(), origin)
    raise MissingPrecondition(
        f"Spack not found: set --spack, ${SPACK_VARIABLE} or PATH",
        hint="git clone --depth 1 https://github.com/spack/spack",
    )


def _at(root: Path, origin: str) -> Instance:
    try:
        text = (root / "lib" / "spack" / "spack" / "__init__.py").read_text(encoding="utf-8")
    except OSError as error:
        raise MissingPrecondition(
            f"{origin}: {root} is not a Spack installation: {error.strerror}",
            hint="set it to the directory that contains bin/spack",
        ) from error
    found = _VERSION.search(text)
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    if found is None or release < OLDEST:
        version = f"{found[1]}.{found[2]}{found[3]}" if found else "of an unknown version"
        raise MissingPrecondition(
            f"Spack in {root} is {version}; {'.'.join(map(str, OLDEST))} or later is required",
            hint="set --spack to a newer one; hidl's own packages require 1.0 or later",
        )
    return Instance(root, f"{found[1]}.{found[2]}{found[3]}", release)
