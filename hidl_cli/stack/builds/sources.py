"""Source archives on this machine, provided by the user or by an earlier installation.

Archives are searched for in the directories listed in ``$HIDL_SOURCES``, in ``<root>/sources`` and in hidl's cache. If
the recipe has a SHA-256, the archive must match it. Otherwise, the SHA-256 of the user's archive is recorded in the
manifest.
"""

from __future__ import annotations

import os
import re
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli.errors import BuildFailed, MissingPrecondition

if TYPE_CHECKING:
    from hidl_cli.stack.schema import Build

PLACES = "HIDL_SOURCES"

_VERSION = r"\d[0-9A-Za-z.+-]*"


def directories(root: Path) -> tuple[Path, ...]:
    """Return the directories of user-provided archives: those in ``$HIDL_SOURCES``, followed by ``<root>/sources``."""
    named = [Path(place).expanduser() for place in os.environ.get(PLACES, "").split(os.pathsep) if place]
    return (*named, root / "sources")


def find(file: str, root: Path) -> Path | None:
    """Return the first user-provided archive with that name, without checking it, or None if there is none."""
    return next((place / file for place in directories(root) if (place / file).is_file()), None)


def user_archive(recipe: Build, root: Path, given: Path | None) -> tuple[Path, Build]:
    """Return the user's archive, and the recipe with the archive's file name and version.

    ``given`` is the file from the command line. Without it, the newest suitable version is selected from the first
    directory that has any. Raises ``MissingPrecondition`` if none is found.
    """
    if given is not None and not given.is_file():
        raise MissingPrecondition(f"source {given} of {recipe.name} not found", hint="--source NAME=FILE")
    found = given or newest(recipe, root)
    if found is None:
        raise missing(recipe, root)
    if not recipe.source.any_version:
        return found, recipe
    version = _version_of(found, recipe)
    file = recipe.source.file.replace(recipe.version, version)
    return found, recipe.model_copy(
        update={"version": version, "source": recipe.source.model_copy(update={"file": file})}
    )


def newest(recipe: Build, root: Path) -> Path | None:
    """Return the user-provided archive with the newest suitable version, or None if there is none."""
    if not recipe.source.any_version:
        return find(recipe.source.file, root)
    for place in directories(root):
        files = [file for file in place.glob(recipe.source.file.replace(recipe.version, "*")) if file.is_file()]
        if files:
            return max(files, key=lambda file: [int(number) for number in re.findall(r"\d+", file.name)])
    return None


def _version_of(archive: Path, recipe: Build) -> str:
    """Read the version from the archive's name or from the name of its top-level directory.

    The default is the version in the recipe.
    """
    before, _, after = recipe.source.file.partition(recipe.version)
    by_name = re.fullmatch(f"{re.escape(before)}({_VERSION}){re.escape(after)}", archive.name)
    if by_name:
        return by_name[1]
    try:
        with tarfile.open(archive) as tar:
            first = tar.next()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BuildFailed(f"{archive} is not an archive of {recipe.name}: {error}") from error
    by_directory = re.match(f"(?:\\./)?{re.escape(before)}({_VERSION})(?:/|$)", first.name if first else "")
    return by_directory[1] if by_directory else recipe.version


def missing(recipe: Build, root: Path) -> MissingPrecondition:
    """Return the error for a missing archive, including a hint about where to get the archive and where to put it."""
    source = recipe.source
    origin = f" from {source.homepage}" if source.homepage else ""
    return MissingPrecondition(
        f"source {source.file} of {recipe.name} {recipe.version} not found",
        hint=f"download it{origin} and pass --source {recipe.name}=FILE (or put it into {root / 'sources'} or a "
        f"directory of {PLACES})",
    )
