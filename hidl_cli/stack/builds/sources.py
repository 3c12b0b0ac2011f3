"""Source archives: found where the user or an earlier installation put them, or fetched from the package index.

An archive is looked for in the directories of ``$HIDL_SOURCES``, in ``<root>/sources`` and in hidl's cache. Whatever
it comes from, it is used only with the SHA-256 of the recipe.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli import paths
from hidl_cli.errors import BuildFailed, MissingPrecondition

if TYPE_CHECKING:
    from hidl_cli.stack.builds.planned import PlannedBuild
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.providers import Provider
    from hidl_cli.stack.schema import Build

PLACES = "HIDL_SOURCES"


def directories(root: Path) -> tuple[Path, ...]:
    """Where a person puts archives: each of ``$HIDL_SOURCES`` (separated by colons), then ``<root>/sources``."""
    named = [Path(place).expanduser() for place in os.environ.get(PLACES, "").split(os.pathsep) if place]
    return (*named, root / "sources")


def find(file: str, root: Path) -> Path | None:
    """The first archive of that name that a person put there, whatever it holds; None where there is none."""
    return next((place / file for place in directories(root) if (place / file).is_file()), None)


def kept(build: PlannedBuild) -> Path:
    """Where hidl keeps a fetched archive."""
    return paths.user_cache() / "sources" / build.source_digest[:16] / build.recipe.source.file


def present(build: PlannedBuild, root: Path) -> Path | None:
    """The archive, if it need not be fetched; ``BuildFailed`` where it has another content than the recipe says."""
    found = find(build.recipe.source.file, root)
    if found is not None:
        _hold_to_digest(found, build)
        return found
    file = kept(build)
    if not file.is_file():
        return None
    if sha256(file) != build.source_digest:  # hidl's own copy is damaged: it can be fetched again
        file.unlink()
        return None
    return file


def fetch(build: PlannedBuild, plan: InstallPlan, provider: Provider, log: Path) -> Path:
    """The archive, fetched into the cache; ``MissingPrecondition`` where hidl cannot, ``BuildFailed`` for a wrong one.

    pip fetches it, with the user's settings; the SHA-256 is checked before anything of it is run.
    """
    if build.recipe.source.pypi is None:
        raise missing(build.recipe, plan.root)
    file = kept(build)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as directory:
        wanted = Path(directory, "wanted.txt")
        requirement = f"{build.recipe.source.pypi}=={build.version} --hash=sha256:{build.source_digest}\n"
        wanted.write_text(requirement, encoding="utf-8")
        provider.run(provider.fetch_source(plan, build.recipe, wanted, Path(directory)), log)
        fetched = Path(directory, build.recipe.source.file)
        if not fetched.is_file():
            raise BuildFailed(f"the package index holds no {fetched.name}; see {log}")
        _hold_to_digest(fetched, build)
        fetched.replace(file)
    return file


def missing(recipe: Build, root: Path) -> MissingPrecondition:
    """The error that tells a person which file to get, from where, and where to put it."""
    source = recipe.source
    whence = f" from {source.homepage}" if source.homepage else ""
    return MissingPrecondition(
        f"the source {source.file} of {recipe.name} {recipe.version} is not here",
        hint=f"get it{whence} and put it into {root / 'sources'}, or name its directory with {PLACES}",
    )


def sha256(file: Path) -> str:
    """The SHA-256 of the file, in hexadecimal."""
    total = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def _hold_to_digest(file: Path, build: PlannedBuild) -> None:
    found = sha256(file)
    if found != build.source_digest:
        raise BuildFailed(
            f"{file} is not the source that the recipe names: its SHA-256 is {found}, not {build.source_digest}",
            hint="it was changed or is damaged: remove it and get it anew",
        )
