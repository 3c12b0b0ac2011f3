"""Source archives: found where the user or an earlier installation put them, or fetched from the package index.

An archive is looked for in the directories of ``$HIDL_SOURCES``, in ``<root>/sources`` and in hidl's cache. Where the
recipe has a SHA-256, no other content is used; where it has none, that of the user's own file goes into the manifest.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli import paths
from hidl_cli.errors import BuildFailed, MissingPrecondition

if TYPE_CHECKING:
    from hidl_cli.stack.builds.planned import PlannedBuild
    from hidl_cli.stack.plan import InstallPlan
    from hidl_cli.stack.providers import Packager
    from hidl_cli.stack.schema import Build

PLACES = "HIDL_SOURCES"

_VERSION = r"\d[0-9A-Za-z.+-]*"


def directories(root: Path) -> tuple[Path, ...]:
    """Where a person puts archives: each of ``$HIDL_SOURCES`` (separated by colons), then ``<root>/sources``."""
    named = [Path(place).expanduser() for place in os.environ.get(PLACES, "").split(os.pathsep) if place]
    return (*named, root / "sources")


def find(file: str, root: Path) -> Path | None:
    """The first archive of that name that a person put there, whatever it holds; None where there is none."""
    return next((place / file for place in directories(root) if (place / file).is_file()), None)


def of_the_user(recipe: Build, root: Path, given: Path | None) -> tuple[Path, Build]:
    """The archive that the user has, and the recipe with its name and version; ``given``: the file that was named.

    Of several versions that serve, the newest is taken from the first directory that has any. Raises
    ``MissingPrecondition`` where there is none.
    """
    if given is not None and not given.is_file():
        raise MissingPrecondition(f"the source {given} of {recipe.name} is not there", hint="--source NAME=FILE")
    found = given or _newest(recipe, root)
    if found is None:
        raise missing(recipe, root)
    if not recipe.source.any_version:
        return found, recipe
    version = _version_of(found, recipe)
    file = recipe.source.file.replace(recipe.version, version)
    return found, recipe.model_copy(
        update={"version": version, "source": recipe.source.model_copy(update={"file": file})}
    )


def keep(build: PlannedBuild, root: Path) -> None:
    """Copy an archive that the user named to ``<root>/sources``: the next installation finds it there."""
    file = root / "sources" / build.recipe.source.file
    if build.archive is None or find(file.name, root) == build.archive:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{os.getpid()}-{file.name}")
    try:
        shutil.copyfile(build.archive, beside)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _newest(recipe: Build, root: Path) -> Path | None:
    if not recipe.source.any_version:
        return find(recipe.source.file, root)
    for place in directories(root):
        files = [file for file in place.glob(recipe.source.file.replace(recipe.version, "*")) if file.is_file()]
        if files:
            return max(files, key=lambda file: [int(number) for number in re.findall(r"\d+", file.name)])
    return None


def _version_of(archive: Path, recipe: Build) -> str:
    """By the archive's name, or by its top directory; the recipe's where neither tells."""
    before, _, after = recipe.source.file.partition(recipe.version)
    by_name = re.fullmatch(f"{re.escape(before)}({_VERSION}){re.escape(after)}", archive.name)
    if by_name:
        return by_name[1]
    try:
        with tarfile.open(archive) as tar:
            first = tar.next()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BuildFailed(f"{archive} is no archive of {recipe.name}: {error}") from error
    by_directory = re.match(f"(?:\\./)?{re.escape(before)}({_VERSION})(?:/|$)", first.name if first else "")
    return by_directory[1] if by_directory else recipe.version


def kept(build: PlannedBuild) -> Path:
    """Where hidl keeps a fetched archive."""
    return paths.user_cache() / "sources" / build.source_digest[:16] / build.recipe.source.file


def present(build: PlannedBuild, root: Path) -> Path | None:
    """The archive, if it need not be fetched; ``BuildFailed`` where it has another content than the recipe says."""
    if build.archive is not None:
        _hold_to_digest(build.archive, build)
        return build.archive
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


def fetch(build: PlannedBuild, plan: InstallPlan, provider: Packager, log: Path) -> Path:
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
        hint=f"get it{whence}, and name it: --source {recipe.name}=FILE (or put it into {root / 'sources'}, or into a "
        f"directory of {PLACES})",
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
