"""What is requested of an installation, and who receives its progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hidl_cli.quoting import sh_line

if TYPE_CHECKING:
    from hidl_cli.site.schema import ProviderName, Site
    from hidl_cli.stack.schema import Stack


class Progress(Protocol):
    """Reports progress to the user."""

    def say(self, text: str) -> None:
        """Print one line."""
        ...

    def step(self, title: str, log: Path | None = None) -> AbstractContextManager[None]:
        """Show that a step is under way; its program's output goes to ``log``."""
        ...


@dataclass(frozen=True)
class Order:
    """What is to be installed: a stack, for a site, below a root; ``locked`` forbids to make a new lock.

    ``sources``: archives that the user names, by the build that they are for. ``provider``: who installs it, None: as
    the site says. ``spack``: where Spack is, ``mirror``: what ``hidl stack fetch`` brought, ``jobs``: how many
    compilers may run at once; None: as the site says, or nowhere. ``platform``: that of the lock; None: this machine's.
    ``attached``: the words that run a command in an allocation to build in; empty: builds run here. ``cache_only``:
    nothing is built from source, all packages come from build caches (Spack).
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
    attached: tuple[str, ...] = ()
    cache_only: bool = False

    @property
    def stack_directory(self) -> Path:
        """What holds all installations of the stack."""
        return self.root / self.site.name / self.stack.name


# The commands of an installation, as plans show them and logs record them.


@dataclass(frozen=True)
class InstallStep:
    """One command of an installation.

    ``variables`` are added to the environment that it gets. ``without_network`` is the same command for the case that
    the cache holds all that it needs: it is tried first, and takes half the time.
    """

    title: str
    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    without_network: tuple[str, ...] | None = None


def log_command(log: Path, argv: Sequence[str]) -> None:
    """Note in the log which command the output that follows is of."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {sh_line(argv)}\n")
