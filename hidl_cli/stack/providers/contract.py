"""The interface of providers, which install stacks into prefixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hidl_cli.stack.order import InstallStep, Order, Progress

if TYPE_CHECKING:
    from hidl_cli.stack.lock import Choice, Locked
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.target import Target


@dataclass(frozen=True)
class Preview:
    """The commands that a provider would run, and the builds as plain data."""

    steps: tuple[InstallStep, ...]
    builds: tuple[Mapping[str, Any], ...] = ()


class Provider(Protocol):
    """Installs stacks into prefixes.

    If ``resolves_in_previews`` is set, a dry run without a lockfile resolves the stack and shows the result.
    """

    resolves_in_previews: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user about the settings, one line each."""

    def choose(self, order: Order, target: Target) -> Choice:
        """Select a lockfile for an installation request without changing anything."""

    def resolve(self, order: Order, target: Target, progress: Progress) -> Locked:
        """Resolve the stack to a new lockfile with exact versions and hashes."""

    def plan(self, order: Order, target: Target, lock: Locked, file: Path) -> InstallPlan:
        """Plan the installation from the lockfile, which was read from ``file``, without changing anything."""

    def preview(self, plan: InstallPlan) -> Preview:
        """Return the commands that ``fill`` would run."""

    def fill(self, plan: InstallPlan, log: Path, progress: Progress, meanwhile: Callable[[], object]) -> None:
        """Install everything into the prefix, which then contains ``bin/python`` and ``bin/mpiexec``.

        ``meanwhile`` is called once during a long-running command. The caller verifies the prefix and removes it if the
        installation or the verification fails.
        """


@runtime_checkable
class WithEnvironment(Protocol):
    """A provider that can show the resolver's input, even if the stack cannot be resolved."""

    def environment_text(self, order: Order, target: Target) -> str:
        """Return the resolver's input."""
