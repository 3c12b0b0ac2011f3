"""What a machine has that Spack can take as it is: its compiler, its Python and the MPI library on PATH.

Only for sites that say ``spack: {detect: true}``; elsewhere the site's file says it.
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
from hidl_cli.stack.order import InstallStep
from hidl_cli.stack.target import Target

if TYPE_CHECKING:
    from hidl_cli.stack.order import Progress
    from hidl_cli.stack.providers.wheels import WheelInstaller
    from hidl_cli.stack.target import Target


#: How a user names a clone of spack-packages.
PLACES_VARIABLE = "HIDL_SPACK_PACKAGES"


@dataclass(frozen=True)
class Places:
    """The directories that an environment names. ``builtin``: a local repository of Spack's packages; None: cloned.

    ``misc`` is for Spack's caches of what its packages say, which dry runs use too.
    """

    root: Path
    builtin: Path | None
    own: Path
    stage: Path
    misc: Path
    mirror: Path | None = None

    @property
    def spack(self) -> Path:
        """All that is Spack's."""
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
        """Where Spack clones its packages to, where the user has none."""
        return self.spack / "packages"


def cache() -> Path:
    """What can be made again."""
    return paths.user_cache() / "spack"


def places(site: Site, root: Path, mirror: Path | None = None) -> Places:
    """The places below ``root`` on ``site``, with what an offline mirror brings."""
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
    """Return the repository itself: people name the clone of spack-packages that holds it, or the repository.

    Raises ``MissingPrecondition`` if there is neither.
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
            f"${PLACES_VARIABLE}" if os.environ.get(PLACES_VARIABLE) else "`spack.packages` of the site, or the mirror"
        )
        raise MissingPrecondition(
            f"{place}, which {origin} names, is not a repository of Spack's packages",
            hint="name a clone of spack-packages, or the directory in it that has repo.yaml",
        )
    return found


# The Python that Spack runs with: one that has clingo, so that Spack need not fetch its own from GitHub.


#: What concretizes, and what it needs; an air-gapped machine gets the wheels of these.
CLINGO = "clingo==5.8.3"
NAMED = "SPACK_PYTHON"


def without_clingo(target: Target) -> Path:
    """Return the interpreter for commands of Spack that resolve nothing: the one with clingo is not needed."""
    named = os.environ.get(NAMED)
    made = _made(target) / "bin" / "python"
    return Path(named) if named else made if made.exists() else target.interpreter


def made_python() -> Path | None:
    """Return the newest interpreter with clingo that hidl has made; None if the user names one or none was made."""
    found = sorted(cache().glob(f"python-*-{CLINGO.rpartition('=')[2]}/bin/python"))
    return found[-1] if found and not os.environ.get(NAMED) else None


def _made(target: Target) -> Path:
    return cache() / f"python-{target.python}-{target.platform}-{CLINGO.rpartition('=')[2]}"


def python(
    target: Target, uv: WheelInstaller, log: Path, progress: Progress, *, offline: bool, wheels: Path | None
) -> Path:
    """The interpreter that Spack is to run with: the user's own ($SPACK_PYTHON), else one that hidl makes once.

    ``wheels``: a directory that holds clingo's, looked into first. Raises ``MissingPrecondition`` where clingo cannot
    be had.
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
        progress.step("give Spack a Python with clingo", log),
    ):
        beside = Path(directory, "python")
        # Its scripts would name the place that it is made in; Spack uses the interpreter alone.
        options = ("--no-project", "--relocatable", "--python", str(target.interpreter))
        uv.run(InstallStep("make it", (find_uv_bin(), "venv", *options, str(beside))), log)
        asked = (*(("--find-links", str(wheels)) if wheels else ()), *(("--offline",) if offline else ()), CLINGO)
        try:
            uv.run(uv.add("install clingo", beside / "bin" / "python", *asked), log)
        except HidlError as error:
            raise MissingPrecondition(
                f"Spack needs clingo, and its wheel cannot be had: {error.message}",
                hint="bring it along (hidl stack fetch), or name a Python that has it with $SPACK_PYTHON",
            ) from error
        beside.replace(made)
    return made / "bin" / "python"


#: What Spack asks of a Python: the parts of the standard library that need a library of the system.
_VARIANTS = "+bz2+ctypes+lzma+pyexpat+sqlite3+ssl+zlib"
_SYSTEM = re.compile(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', re.MULTILINE)


def detected(site: Site, target: Target, host: Host) -> Site:
    """The site, with what its file leaves open taken from this machine."""
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
    """The operating system as Spack 0.23 calls it: debian12, rhel8, ubuntu22.04."""
    found: dict[str, str] = dict(_SYSTEM.findall(host.read("/etc/os-release")))
    name, version = found.get("ID", "linux"), found.get("VERSION_ID", "")
    return name + (version if name == "ubuntu" else version.partition(".")[0])


def _gcc(host: Host) -> Compiler | None:
    """The GCC on PATH; its C++ compiler must be there too, and be of the same version."""
    found = software.find(host, "gcc", software.PROGRAMS["gcc"])
    if found is None:
        return None
    return Compiler(
        package="gcc", version=found.version, prefix=found.prefix, c="gcc", cxx="g++", fortran=found.fortran
    )


def _python(host: Host, target: Target) -> External | None:
    """The interpreter that stacks are built on: the installation itself, not a virtual environment of it."""
    code = "import sys, platform; print(platform.python_version(), sys.base_prefix)"
    said = (host.ask(str(target.interpreter), "-I", "-c", code) or "").split(maxsplit=1)
    return External(version=said[0], prefix=said[1].strip(), variants=_VARIANTS) if len(said) == 2 else None


def _mpi(host: Host) -> Mpi | None:
    """The MPI library on PATH, if ``mpicc``, ``mpiexec`` and the program with its version are of one."""
    found = [library for library in software.on_path(host) if library.prefix]
    mpicc = host.which("mpicc")
    owners = [one for one in found if mpicc and str(Path(mpicc).parent.parent) == one.prefix]
    if len(found) != 1 or len(owners) != 1:
        return None
    return Mpi(family=owners[0].family, version=owners[0].version, prefix=owners[0].prefix)


# The Spack that is used: where it is, and its version, read without starting it.


#: How a user names it, beside --spack.
SPACK_VARIABLE = "HIDL_SPACK"
#: The first release that hidl writes environments for, and the first whose compilers are packages.
OLDEST = (0, 23)
COMPILERS_ARE_PACKAGES = (1, 0)

_VERSION = re.compile(r'^__version__ = "(\d+)\.(\d+)([^"]*)"$', re.MULTILINE)


@dataclass(frozen=True)
class Instance:
    """One Spack. ``version`` is its text, ``release`` the first two numbers of it."""

    root: Path
    version: str
    release: tuple[int, int]

    @property
    def program(self) -> Path:
        """The command."""
        return self.root / "bin" / "spack"


def find(site: Site, given: Path | None, environ: Mapping[str, str]) -> Instance:
    """The Spack that the user names (--spack, $HIDL_SPACK), else the site's, else $SPACK_ROOT, else that on PATH.

    Raises ``MissingPrecondition`` where there is none, or one that is too old.
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
        "Spack is not here: it is neither named nor on PATH",
        hint="get it (git clone https://github.com/spack/spack), and name its directory with --spack or "
        f"${SPACK_VARIABLE}",
    )


def _at(root: Path, origin: str) -> Instance:
    try:
        text = (root / "lib" / "spack" / "spack" / "__init__.py").read_text(encoding="utf-8")
    except OSError as error:
        raise MissingPrecondition(
            f"{root}, which {origin} names, is not a Spack: {error.strerror}",
            hint="name the directory that holds bin/spack",
        ) from error
    found = _VERSION.search(text)
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    if found is None or release < OLDEST:
        told = f"{found[1]}.{found[2]}{found[3]}" if found else "of an unknown version"
        raise MissingPrecondition(
            f"the Spack in {root} is {told}, and hidl needs {'.'.join(map(str, OLDEST))} or later",
            hint="name a newer one with --spack; 1.0 and later can use all of hidl's packages",
        )
    return Instance(root, f"{found[1]}.{found[2]}{found[3]}", release)
