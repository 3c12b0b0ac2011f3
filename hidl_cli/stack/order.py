"""Installation requests, installation commands, and progress reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hidl_cli.quoting import sh_line

if TYPE_CHECKING:
    from hidl_cli.batch_systems import BuildJob
    from hidl_cli.site.schema import ProviderName, Site
    from hidl_cli.stack.schema import Stack


class Progress(Protocol):
    """Reports progress to the user."""

    def say(self, text: str) -> None:
        """Print one line."""

    def step(self, title: str, log: Path | None = None) -> AbstractContextManager[None]:
        """Show a step while it runs; its program's output is in ``log``."""


@dataclass(frozen=True)
class Order:
    """A request to install a stack for a site.

    Attributes:
        site: The site.
        stack: The stack.
        root: Root of the installations.
        locked: Fail instead of creating a new lockfile.
        offline: Do not use the network.
        sources: Source archives from the command line, by build name.
        provider: Name of the provider (default: the site's provider).
        spack: Path of Spack (default: the site's Spack).
        mirror: Directory created by ``hidl stack fetch``, or None.
        jobs: Number of parallel compile jobs (default: the site's setting).
        platform: Platform that the lockfile is for (default: this machine's platform).
        build_job: Job that builds run in; None to build here.
        cache_only: Install all packages from build caches and build nothing from source (Spack).
        credentials: URLs with credentials, by the URL without them, for this process only.
    """

    site: Site
    stack: Stack
    root: Path
    locked: bool = False
    offline: bool = False
    sources: Mapping[str, Path] = field(default_factory=dict)
    provider: ProviderName | None = None
    spack: Path | None = None
    mirror: Path | None = None
    jobs: int | None = None
    platform: str | None = None
    build_job: BuildJob | None = None
    cache_only: bool = False
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def stack_directory(self) -> Path:
        """The directory that contains all of the stack's installations."""
        return self.root / self.site.name / self.stack.name


@dataclass(frozen=True)
class InstallStep:
    """An installation command.

    ``variables`` are added to its environment. ``without_network`` is the same command without network access, which is
    tried first because it takes half the time if everything is cached. ``cancel`` is the command that cancels the job
    in which the installation command runs, if any.
    """

    title: str
    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    without_network: tuple[str, ...] | None = None
    cancel: tuple[str, ...] = ()


def log_command(log: Path, argv: Sequence[str]) -> None:
    """Append the command line to the log, before the output of the command."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {sh_line(argv)}\n")
