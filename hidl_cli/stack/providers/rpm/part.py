"""The RPM that a plan installs: which file, of which library, known by its SHA-256."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hidl_cli.errors import BuildFailed, MissingPrecondition
from hidl_cli.mpi import TRAITS, Family
from hidl_cli.stack.builds import sources

if TYPE_CHECKING:
    from hidl_cli.stack.order import Order
    from hidl_cli.stack.plan import InstallPlan

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
