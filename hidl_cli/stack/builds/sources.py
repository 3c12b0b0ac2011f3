"""Source archives that the user or an earlier installation put here.

An archive is looked for in the directories of ``$HIDL_SOURCES``, in ``<root>/sources`` and in hidl's cache. Where the
recipe has a SHA-256, no other content is used; where it has none, that of the user's own file goes into the manifest.
"""

from __future__ import annotations

import hashlib
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
    """The archive of a build that is here already, of the newest version that serves; None where there is none."""
    if not recipe.source.any_version:
        return find(recipe.source.file, root)
    for place in directories(root):
        files = [file for file in place.glob(recipe.source.file.replace(recipe.version, "*")) if file.is_file()]
        if files:
            return max(files, key=lambda file: [int(number) for number in re.findall(r"\d+", file.name)])
    return None


def _version_of(archive: Path, recipe: Build) -> str:
    """By the archive's name, or by its top directory; the recipe's if neither has one."""
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
    """The error for a missing archive: which file to download, from where, and where to put it."""
    source = recipe.source
    origin = f" from {source.homepage}" if source.homepage else ""
    return MissingPrecondition(
        f"the source {source.file} of {recipe.name} {recipe.version} is not here",
        hint=f"get it{origin}, and name it: --source {recipe.name}=FILE (or put it into {root / 'sources'}, or into a "
        f"directory of {PLACES})",
    )


def sha256(file: Path) -> str:
    """The SHA-256 of the file, in hexadecimal."""
    total = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            total.update(block)
    return total.hexdigest()
