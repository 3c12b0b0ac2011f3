"""The source archive of a planned build: kept, or fetched from the package index; always held to its SHA-256."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli import paths
from hidl_cli.errors import BuildFailed
from hidl_cli.stack.builds import sources

if TYPE_CHECKING:
    from hidl_cli.stack.builds.contract import Packager
    from hidl_cli.stack.builds.planned import PlannedBuild
    from hidl_cli.stack.plan import InstallPlan


def keep(build: PlannedBuild, root: Path) -> None:
    """Copy an archive that the user named to ``<root>/sources``: the next installation finds it there."""
    file = root / "sources" / build.recipe.source.file
    if build.archive is None or sources.find(file.name, root) == build.archive:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{os.getpid()}-{file.name}")
    try:
        shutil.copyfile(build.archive, beside)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def kept(build: PlannedBuild) -> Path:
    """Where hidl keeps a fetched archive."""
    return paths.user_cache() / "sources" / build.source_digest[:16] / build.recipe.source.file


def present(build: PlannedBuild, root: Path) -> Path | None:
    """The archive, if it need not be fetched; ``BuildFailed`` where it has another content than the recipe says."""
    if build.archive is not None:
        _hold_to_digest(build.archive, build)
        return build.archive
    found = sources.find(build.recipe.source.file, root)
    if found is not None:
        _hold_to_digest(found, build)
        return found
    file = kept(build)
    if not file.is_file():
        return None
    if sources.sha256(file) != build.source_digest:  # hidl's own copy is damaged: it can be fetched again
        file.unlink()
        return None
    return file


def fetch(build: PlannedBuild, plan: InstallPlan, provider: Packager, log: Path) -> Path:
    """The archive, fetched into the cache; ``MissingPrecondition`` where hidl cannot, ``BuildFailed`` for a wrong one.

    pip fetches it, with the user's settings; the SHA-256 is checked before anything of it is run.
    """
    if build.recipe.source.pypi is None:
        raise sources.missing(build.recipe, plan.root)
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


def _hold_to_digest(file: Path, build: PlannedBuild) -> None:
    found = sources.sha256(file)
    if found != build.source_digest:
        raise BuildFailed(
            f"{file} is not the source that the recipe names: its SHA-256 is {found}, not {build.source_digest}",
            hint="it was changed or is damaged: remove it and download it again",
        )
