"""What the plan of an installation holds for Spack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hidl_cli.stack.providers.spack.environment import Environment
from hidl_cli.stack.providers.spack.instance import Instance
from hidl_cli.stack.providers.spack.lock import SpackLock
from hidl_cli.stack.providers.spack.places import Places

if TYPE_CHECKING:
    from hidl_cli.stack.plan import InstallPlan


@dataclass(frozen=True)
class SpackPart:
    """The Spack that installs, the environment and its lock, and where all lies.

    ``shell`` is put before the command that builds: it gets a node of the site's scheduler, where packages are built
    on one. ``jobs``: how many compilers may run at once; None: as Spack finds. ``keys``: files with public keys of
    build caches. ``cache_only``: nothing is built from source.
    """

    instance: Instance
    environment: Environment
    lock: SpackLock
    places: Places
    jobs: int | None
    shell: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    cache_only: bool = False

    @property
    def to_install(self) -> int:
        """How many packages of the lock Spack installs."""
        return sum(node.external is None for node in self.lock.nodes)

    @property
    def caches(self) -> tuple[str, ...]:
        """The build caches of the environment."""
        mirrors = self.environment.document["spack"].get("mirrors", {})
        return tuple(name for name, mirror in mirrors.items() if mirror["binary"])

    @property
    def identity(self) -> str | None:
        """See ``Part``."""
        return None

    @property
    def environment_text(self) -> str | None:
        """See ``Part``."""
        return self.environment.text

    def to_json(self) -> Mapping[str, Any]:
        """It, as part of a JSON document."""
        return {
            "root": str(self.instance.root),
            "version": self.instance.version,
            "environment": self.environment.document,
            "repositories": dict(self.lock.repositories),
            "hashes": {node.name: node.hash for node in self.lock.nodes},
            "externals": {node.name: node.external for node in self.lock.nodes if node.external},
            "jobs": self.jobs,
        }


def part_of(plan: InstallPlan) -> SpackPart:
    """The part of a plan that this provider made."""
    assert isinstance(plan.part, SpackPart)
    return plan.part
