"""Where Spack's files lie below the root of the installations.

::

    <root>/spack/store/      what is built, each package once for all stacks and sites
    <root>/spack/sources/    fetched archives
    <root>/spack/stage/      where packages are built, unless the site names another place
    <root>/spack/modules/    modulefiles of Spack's own, where the site wants them
    <prefix>/environment/    an installation's environment: spack.yaml and spack.lock
    <prefix>/view/           its view
    <cache>/spack/           what can be made again: Spack's own caches, and the Python that it runs with
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import paths
from hidl_cli.errors import MissingPrecondition
from hidl_cli.site.schema import Site

#: How a user names a clone of spack-packages.
VARIABLE = "HIDL_SPACK_PACKAGES"


@dataclass(frozen=True)
class Places:
    """The directories that an environment names. ``builtin``: a local repository of Spack's packages; None: cloned.

    ``misc`` is for Spack's caches of what its packages say, which dry runs use too.
    """

    root: Path
    builtin: Path | None
    own: Path
    stage: Path
    misc: Path
    mirror: Path | None = None

    @property
    def spack(self) -> Path:
        """All that is Spack's."""
        return self.root / "spack"

    @property
    def sources(self) -> Path:
        """Spack's cache of fetched archives."""
        return self.spack / "sources"

    @property
    def clone(self) -> Path:
        """Where Spack clones its packages to, where the user has none."""
        return self.spack / "packages"


def cache() -> Path:
    """What can be made again."""
    return paths.user_cache() / "spack"


def places(site: Site, root: Path, mirror: Path | None = None) -> Places:
    """The places below ``root`` on ``site``, with what an offline mirror brings."""
    stage = site.spack.stage
    brought = mirror / "spack-packages" if mirror else None
    return Places(
        root=root,
        builtin=_builtin(site, brought),
        own=paths.shipped() / "recipes" / "spack_repo" / "hidl",
        stage=Path(os.path.expandvars(stage)).expanduser() if stage else root / "spack" / "stage",
        misc=cache() / "misc",
        mirror=mirror,
    )


def _builtin(site: Site, brought: Path | None) -> Path | None:
    """Return the repository itself: people name the clone of spack-packages that holds it, or the repository.

    Raises ``MissingPrecondition`` if there is neither.
    """
    named = os.environ.get(VARIABLE) or (str(brought) if brought and brought.is_dir() else None) or site.spack.packages
    if not named:
        return None
    place = Path(os.path.expandvars(named)).expanduser().absolute()
    inside = place / "repos" / "spack_repo" / "builtin"
    found = inside if inside.is_dir() else place
    if not (found / "repo.yaml").is_file():
        origin = f"${VARIABLE}" if os.environ.get(VARIABLE) else "`spack.packages` of the site, or the mirror"
        raise MissingPrecondition(
            f"{place}, which {origin} names, is not a repository of Spack's packages",
            hint="name a clone of spack-packages, or the directory in it that has repo.yaml",
        )
    return found
