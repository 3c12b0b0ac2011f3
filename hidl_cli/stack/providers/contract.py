"""The contract of providers: what installs a stack into a prefix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hidl_cli.stack.order import InstallStep

if TYPE_CHECKING:
    from hidl_cli.stack.lock import Choice, Locked
    from hidl_cli.stack.order import Order, Progress
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.target import Target


@dataclass(frozen=True)
class Preview:
    """What a provider would do: its commands, what it would compile (documents), and more lines for people."""

    steps: tuple[InstallStep, ...]
    builds: tuple[Mapping[str, Any], ...] = ()


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


@runtime_checkable
class WithEnvironment(Protocol):
    """A provider that can show what a stack is resolved from, even if it cannot be resolved."""

    def environment_text(self, order: Order, target: Target) -> str:
        """Return the input of the program that resolves the order's stack."""
        ...
