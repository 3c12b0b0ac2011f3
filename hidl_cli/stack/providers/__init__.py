"""How a stack is installed; one module a provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site
    from hidl_cli.stack.lock import Lock
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.schema import Build, Stack
    from hidl_cli.stack.target import Target


@dataclass(frozen=True)
class Step:
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
    from hidl_cli.quoting import sh_line

    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {sh_line(argv)}\n")


class Provider(Protocol):
    """Resolves a stack to exact packages, and installs them into a prefix. Errors are those of ``hidl_cli.errors``."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the settings, a line each."""
        ...

    def resolve(self, stack: Stack, target: Target, *, offline: bool) -> Lock:
        """The lock of the stack for the target: every package that it needs, in exact versions with hashes."""
        ...

    def missing(self, plan: InstallPlan) -> tuple[str, ...]:
        """The packages of the plan's lock that could not be had without a network; the cache may be filled."""
        ...

    def steps(self, plan: InstallPlan) -> tuple[Step, ...]:
        """The commands that fill the plan's prefix; it does not exist yet. Nothing is touched."""
        ...

    def fetch_source(self, plan: InstallPlan, build: Build, wanted: Path, directory: Path) -> Step:
        """The command that puts a build's source archive into ``directory``; ``wanted`` holds it, with its hash."""
        ...

    def build_tools(self, plan: InstallPlan, build: Build, directory: Path) -> Step:
        """The command that installs what only the build needs into ``directory``, beside the stack."""
        ...

    def install_wheel(self, plan: InstallPlan, wheel: Path) -> Step:
        """The command that adds a wheel that was built to the plan's prefix; nothing else changes there."""
        ...

    def run(self, step: Step, log: Path, *, meanwhile: Callable[[], object] | None = None) -> None:
        """Run one of these commands; its output is appended to ``log``. ``meanwhile`` is called while it runs."""
        ...


def provider_for(site: Site) -> Provider:
    """The provider that the site names."""
    from hidl_cli.stack.providers.wheels import Wheels

    providers = {"wheels": Wheels.for_site}
    return providers[site.install.provider](site)
