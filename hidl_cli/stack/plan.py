"""The plan of an installation: what is installed, from which lock and where; printed by the dry run, then followed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hidl_cli.errors import InvalidInput
from hidl_cli.stack.builds.planned import PlannedBuild
from hidl_cli.stack.lock import Locked
from hidl_cli.stack.own_wheel import OwnWheel
from hidl_cli.stack.schema import find_wheel
from hidl_cli.stack.target import Target

if TYPE_CHECKING:
    from hidl_cli.mpi import Family
    from hidl_cli.site.schema import ProviderName

#: PATH separates by colons, shells and modulefiles by line ends, and mpi4py expands variables in its library's path.
UNUSABLE = (":", "$", "\n", "\r", "\0")


class Part(Protocol):
    """What one provider adds to a plan; in JSON documents it stands by the provider's name."""

    @property
    def identity(self) -> str | None:
        """What of it decides the content of the prefix; None if the lock decides everything."""
        ...

    @property
    def environment_text(self) -> str | None:
        """The file that the provider's program reads; None if there is none."""
        ...

    def to_json(self) -> Mapping[str, Any]:
        """It, as part of a JSON document."""
        ...


@dataclass(frozen=True)
class InstallPlan:
    """One stack on one site, as it is to be installed below ``root``.

    ``lock_origin`` is the file of the lock, ``own`` hidl's own wheels, ``builds`` what is compiled, ``imports`` the
    modules that the verification imports, ``verify_modules`` those whose checks it makes; ``mpi`` is the family of its
    MPI library, ``mpi_place`` where that lies if not in the prefix. ``part`` is what the provider needs besides.
    Another lock, another build or another hidl gives another ``id``, so what is in a prefix never changes.
    """

    site: str
    stack: str
    title: str
    root: Path
    target: Target
    lock: Locked
    lock_origin: Path
    own: tuple[OwnWheel, ...]
    imports: tuple[str, ...]
    verify_modules: tuple[str, ...] = ()
    builds: tuple[PlannedBuild, ...] = ()
    advisories: tuple[Mapping[str, Any], ...] = ()
    offline: bool = False
    provider: ProviderName = "wheels"
    mpi: Family = "mpich"
    mpi_version: str | None = None
    mpi_place: Path | None = None
    part: Part | None = None

    def __post_init__(self) -> None:
        unusable = [character for character in UNUSABLE if character in str(self.root)]
        if unusable:
            raise InvalidInput(
                f"stacks do not work below {str(self.root)!r}, for its {unusable[0]!r}",
                hint="choose another place with --prefix, or with `install.root` in the site's file",
            )

    @property
    def id(self) -> str:
        """A short hash of the lock's body, of hidl's own wheels and of what is built."""
        parts = [self.lock.digest, *(f"{wheel.name} {wheel.digest}" for wheel in self.own)]
        parts += [f"build {build.name} {build.digest}" for build in self.builds]
        parts += [self.part.identity] if self.part and self.part.identity else []
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]

    @property
    def verify_gpus(self) -> tuple[str, ...]:
        """The GPUs that the wheels of frameworks must have kernels for; what Spack builds is for those it was told."""
        return self.target.gpus if self.provider == "wheels" else ()

    @property
    def verify_kernels(self) -> str:
        """What the table of wheels has for the locked frameworks, as ``hidl_workloads.verify`` takes it."""
        if not self.verify_gpus:
            return ""
        machine = self.target.machine
        known = [find_wheel(each.name, each.version, machine) for each in self.lock.packages]
        return ",".join(":".join((wheel.package, *wheel.architectures)) for wheel in known if wheel)

    @property
    def stack_directory(self) -> Path:
        """What holds all installations of this stack."""
        return self.root / self.site / self.stack

    @property
    def prefix(self) -> Path:
        """The installation's own directory."""
        return self.stack_directory / self.id

    @property
    def lock_file(self) -> Path:
        """The lock of the wheels in the prefix, from which it is filled."""
        return self.prefix / "lock.txt"

    def to_json(self) -> dict[str, Any]:
        """The plan as part of a JSON document."""
        return {
            "site": self.site,
            "stack": self.stack,
            "provider": self.provider,
            "mpi": {"family": self.mpi, "version": self.mpi_version},
            "prefix": str(self.prefix),
            "id": self.id,
            "python": self.target.python,
            "platform": self.target.platform,
            "accelerator": self.target.accelerator,
            "interpreter": str(self.target.interpreter),
            "lock": {"file": str(self.lock_origin), "digest": self.lock.digest},
            "packages": {package.name: package.version for package in self.lock.packages},
            "own": {wheel.name: {"version": wheel.version, "digest": wheel.digest} for wheel in self.own},
            "builds": [build.to_json() for build in self.builds],
            "imports": list(self.imports),
            "verify_modules": list(self.verify_modules),
            "advisories": [dict(advisory) for advisory in self.advisories],
            "offline": self.offline,
            **({self.provider: self.part.to_json()} if self.part else {}),
        }
