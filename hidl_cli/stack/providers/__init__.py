"""How a stack is installed; one module a provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hidl_cli.site.schema import ProviderName, Site
    from hidl_cli.stack.install import Order, Progress
    from hidl_cli.stack.lock import Choice, Locked
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.schema import Build
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


@dataclass(frozen=True)
class Preview:
    """What a provider would do: its commands, what it would compile (documents), and more lines for people."""

    steps: tuple[Step, ...]
    builds: tuple[Mapping[str, Any], ...] = ()


def log_command(log: Path, argv: Sequence[str]) -> None:
    """Note in the log which command the output that follows is of."""
    from hidl_cli.quoting import sh_line

    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {sh_line(argv)}\n")


class Provider(Protocol):
    """How a stack comes into a prefix. Errors are those of ``hidl_cli.errors``.

    ``resolves_in_previews``: does a dry run without a lock show what would be resolved?
    """

    resolves_in_previews: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the settings, a line each."""
        ...

    def choose(self, order: Order, target: Target) -> Choice:
        """The lock that serves the order, with those that do not; nothing is touched."""
        ...

    def resolve(self, order: Order, target: Target, progress: Progress) -> Locked:
        """A new lock of the order's stack: every package that it needs, in exact versions with hashes."""
        ...

    def plan(self, order: Order, target: Target, lock: Locked, file: Path) -> InstallPlan:
        """The order as it is carried out from ``lock``, which lies in ``file``; nothing is touched."""
        ...

    def preview(self, plan: InstallPlan) -> Preview:
        """What ``fill`` would run."""
        ...

    def fill(self, plan: InstallPlan, log: Path, progress: Progress, meanwhile: Callable[[], object]) -> None:
        """Fill the plan's prefix, which holds nothing of an earlier attempt that counts.

        ``meanwhile`` is called once, when a program runs that takes time. The prefix then has ``bin/python`` and
        ``bin/mpiexec``; it is verified by the caller, and removed where this or that fails.
        """
        ...


class Packager(Protocol):
    """Who installs wheels, and serves those that build more of them."""

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


def provider_for(site: Site, name: ProviderName | None = None, mirror: Path | None = None) -> Provider:
    """The provider of that name; None: the one that the site names. ``mirror``: what was brought along."""
    wanted = name or site.install.provider
    if wanted == "spack":
        from hidl_cli.stack.providers.spack.provider import FromSpack

        return FromSpack(site, mirror)
    if wanted == "rpm":
        from hidl_cli.stack.providers.rpm.provider import FromRpm

        return FromRpm(site, mirror)
    from hidl_cli.stack.providers.venv import FromWheels

    return FromWheels(site, mirror)
