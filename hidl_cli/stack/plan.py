"""Installation plans, which a dry run prints: packages, lockfile and prefix."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hidl_cli.errors import InvalidInput
from hidl_cli.stack.builds.plan import PlannedBuild
from hidl_cli.stack.installation import UNUSABLE
from hidl_cli.stack.lock import Locked
from hidl_cli.stack.own_wheel import OwnWheel
from hidl_cli.stack.schema import Stack, find_wheel
from hidl_cli.stack.target import Target

if TYPE_CHECKING:
    from hidl_cli.mpi import Family
    from hidl_cli.site.schema import ProviderName


class ProviderPart(Protocol):
    """The provider-specific part of a plan. Its key in JSON documents is the provider's name."""

    @property
    def identity(self) -> str | None:
        """A string that identifies what this part contributes to the prefix.

        The string is None if the lockfile determines everything.
        """

    @property
    def environment_text(self) -> str | None:
        """The input file of the provider's program, or None if there is none."""

    def to_json(self) -> Mapping[str, Any]:
        """Return the part as plain data."""


@dataclass(frozen=True)
class StackSources:
    """A stack's own package sources.

    Attributes:
        indexes: Package indexes, which are searched first, with credentials if the user has typed them.
        find_links: Pages and directories with wheels.
        references: Normalized direct references.
    """

    indexes: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    references: tuple[str, ...] = ()

    @classmethod
    def of(cls, stack: Stack, credentials: Mapping[str, str]) -> StackSources:
        """Return the sources of a stack; ``credentials`` maps URLs to the same URLs with credentials."""
        direct = tuple(text for text in stack.requirements if " @ " in text)
        return cls(
            tuple(credentials.get(url, url) for url in stack.indexes),
            tuple(credentials.get(url, url) for url in stack.find_links),
            direct,
        )


@dataclass(frozen=True)
class InstallPlan:
    """A planned installation of a stack on a site.

    ``id`` changes with the lockfile, the builds and hidl itself, so that a prefix's content never changes.

    Attributes:
        site: Name of the site.
        stack: Name of the stack.
        title: Title of the stack.
        root: Root of the installations.
        target: Target of the installation.
        lock: The lockfile.
        lock_origin: Path of the lockfile.
        own: Wheels for hidl's own distributions.
        imports: Modules imported by the verification.
        verify_modules: Modules whose checks are run by the verification.
        builds: Builds to run after the wheels are installed.
        advisories: Notices for the user, as plain data.
        offline: Do not use the network.
        provider: Name of the provider.
        mpi: MPI family.
        mpi_version: Version of the MPI library, if known.
        mpi_place: The MPI library's prefix, if the library is outside of the stack's prefix.
        part: Provider-specific part.
        requirements: Names of packages required by the user, all of which must be importable.
        extra: The stack's own package sources and direct references.
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
    part: ProviderPart | None = None
    requirements: tuple[str, ...] = ()
    extra: StackSources = field(default_factory=StackSources, repr=False)

    def __post_init__(self) -> None:
        unusable = [character for character in UNUSABLE if character in str(self.root)]
        if unusable:
            raise InvalidInput(
                f"cannot install stacks below {str(self.root)!r}: the path contains {unusable[0]!r}",
                hint="choose another directory with --prefix or `install.root` in the site file",
            )

    @property
    def id(self) -> str:
        """A short hash of the lockfile, hidl's own wheels and the builds."""
        parts = [self.lock.digest, *(f"{wheel.name} {wheel.digest}" for wheel in self.own)]
        parts += [f"build {build.name} {build.digest}" for build in self.builds]
        parts += [self.part.identity] if self.part and self.part.identity else []
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]

    @property
    def verify_gpus(self) -> tuple[str, ...]:
        """The GPUs that framework wheels must support. Spack uses the GPUs in its own configuration instead."""
        return self.target.gpus if self.provider == "wheels" else ()

    @property
    def verify_kernels(self) -> str:
        """The GPU architectures of the frameworks in the lockfile, as an option for ``hidl_workloads.verify``."""
        if not self.verify_gpus:
            return ""
        machine = self.target.machine
        known = [find_wheel(each.name, each.version, machine) for each in self.lock.packages]
        return ",".join(":".join((wheel.package, *wheel.architectures)) for wheel in known if wheel)

    @property
    def stack_directory(self) -> Path:
        """The directory that contains all of the stack's installations."""
        return self.root / self.site / self.stack

    @property
    def prefix(self) -> Path:
        """The installation directory."""
        return self.stack_directory / self.id

    @property
    def lock_file(self) -> Path:
        """The lockfile for the wheels in the prefix."""
        return self.prefix / "lock.txt"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
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
