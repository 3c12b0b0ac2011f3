"""Interfaces of build kinds and of the wheel installer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hidl_cli.stack.order import InstallStep
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.schema import Build


@dataclass(frozen=True)
class BuildContext:
    """The directories and settings of one build.

    ``source`` is the patched source tree, in which the commands run, ``product`` is an empty directory for the product,
    ``prefix`` is the stack's prefix, and ``tools`` is the directory that contains the build requirements. ``jobs`` is
    the number of parallel compile jobs. ``objects`` are C files to compile first.
    """

    recipe: Build
    source: Path
    product: Path
    prefix: Path
    tools: Path
    jobs: int
    objects: tuple[Path, ...] = ()

    def fill(self, text: str) -> str:
        """Replace ``{tools}`` in a text of the recipe with the tools directory."""
        return text.replace("{tools}", str(self.tools))


class BuildKind(Protocol):
    """A kind of build. If ``relocatable`` is set, a cached product can be installed into any prefix."""

    relocatable: bool

    def commands(self, place: BuildContext) -> tuple[InstallStep, ...]:
        """Return the commands that build the product, in order; they run in ``place.source``."""

    def installation(self, plan: InstallPlan, provider: Packager, product: Path) -> tuple[InstallStep, ...]:
        """Return the commands that install a product into the prefix of the plan."""


class Packager(Protocol):
    """An installer of wheels and of their build requirements."""

    def fetch_source(self, plan: InstallPlan, build: Build, wanted: Path, directory: Path) -> InstallStep:
        """Return the command that downloads the source archive into ``directory``.

        ``wanted`` is a requirements file with the hash of the archive.
        """

    def build_tools(self, plan: InstallPlan, build: Build, directory: Path) -> InstallStep:
        """Return the command that installs the build requirements into ``directory``, outside of the stack."""

    def install_wheel(self, plan: InstallPlan, wheel: Path) -> InstallStep:
        """Return the command that installs a built wheel into the prefix, without dependencies."""

    def run(self, step: InstallStep, log: Path, *, meanwhile: Callable[[], object] | None = None) -> None:
        """Run a command and append its output to ``log``; ``meanwhile`` is called while it runs."""
