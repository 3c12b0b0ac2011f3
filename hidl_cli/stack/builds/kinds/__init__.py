"""What a kind of build does: the commands that make its product, and those that install it; one module a kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hidl_cli.stack.builds.kinds import autotools, wheel

if TYPE_CHECKING:
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.providers import Packager, Step
    from hidl_cli.stack.schema import Build


@dataclass(frozen=True)
class Workplace:
    """Where one build takes place; all directories exist.

    ``source`` is the patched tree, ``product`` the empty directory that the product goes to, ``prefix`` that of the
    stack, ``jobs`` how many compilers may run at once. The commands get ``environment`` and start in ``source``.
    """

    recipe: Build
    source: Path
    product: Path
    prefix: Path
    jobs: int


class Kind(Protocol):
    """One kind of build. ``relocatable``: a product serves every prefix, and can be taken from the cache for each."""

    relocatable: bool

    def commands(self, place: Workplace) -> tuple[Step, ...]:
        """What turns the source into a product; run in order, in ``place.source``."""
        ...

    def installation(self, plan: InstallPlan, provider: Packager, product: Path) -> tuple[Step, ...]:
        """What puts a product, which may come from the cache, into the plan's prefix; run by the provider."""
        ...


KINDS: Mapping[str, Kind] = {"autotools": autotools.KIND, "wheel": wheel.KIND}
