"""The contract of build kinds: the commands that make a product, and those that install it."""

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
class Workplace:
    """Where one build takes place; all directories exist.

    ``source`` is the patched tree, ``product`` the empty directory that the product goes to, ``prefix`` that of the
    stack, ``tools`` that of what the build requires, ``jobs`` how many compilers may run at once. ``objects``: files of
    C to compile before. The commands get ``environment`` and start in ``source``.
    """

    recipe: Build
    source: Path
    product: Path
    prefix: Path
    tools: Path
    jobs: int
    objects: tuple[Path, ...] = ()

    def fill(self, text: str) -> str:
        """Return ``text`` of the recipe with the directory of the tools in the place of ``{tools}``."""
        return text.replace("{tools}", str(self.tools))


class Kind(Protocol):
    """One kind of build. ``relocatable``: a product serves every prefix, and can be taken from the cache for each."""

    relocatable: bool

    def commands(self, place: Workplace) -> tuple[InstallStep, ...]:
        """What turns the source into a product; run in order, in ``place.source``."""
        ...

    def installation(self, plan: InstallPlan, provider: Packager, product: Path) -> tuple[InstallStep, ...]:
        """What puts a product, which may come from the cache, into the plan's prefix; run by the provider."""
        ...


class Packager(Protocol):
    """Who installs wheels, and serves those that build more of them."""

    def fetch_source(self, plan: InstallPlan, build: Build, wanted: Path, directory: Path) -> InstallStep:
        """The command that puts a build's source archive into ``directory``; ``wanted`` holds it, with its hash."""
        ...

    def build_tools(self, plan: InstallPlan, build: Build, directory: Path) -> InstallStep:
        """The command that installs what only the build needs into ``directory``, beside the stack."""
        ...

    def install_wheel(self, plan: InstallPlan, wheel: Path) -> InstallStep:
        """The command that adds a wheel that was built to the plan's prefix; nothing else changes there."""
        ...

    def run(self, step: InstallStep, log: Path, *, meanwhile: Callable[[], object] | None = None) -> None:
        """Run one of these commands; its output is appended to ``log``. ``meanwhile`` is called while it runs."""
        ...
