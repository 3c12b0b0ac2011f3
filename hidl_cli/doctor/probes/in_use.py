"""Which installation of each stack is in use, and whether others are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hidl_cli.doctor.context import Context
from hidl_cli.errors import MissingPrecondition
from hidl_cli.stack import installation

#: Lmod and Environment Modules set these.
_OF_MODULES = {"LMOD_CMD", "MODULES_CMD", "MODULESHOME"}


@dataclass(frozen=True)
class InUse:
    """One stack: ``published`` are the ids of its whole installations; ``current`` is the one that the link of that
    name leads to, None where there is no such link or it leads nowhere; ``shown``: its modulefile is where modules are
    looked for. ``has_modules``: this shell has the command `module`."""

    stack: str
    directory: Path
    published: tuple[str, ...]
    current: str | None
    shown: bool
    has_modules: bool


def probe(context: Context) -> tuple[InUse, ...]:
    """The stack of the context, or every stack of the site that anything is there of."""
    try:
        root = context.root or installation.root(context.site)
    except MissingPrecondition:
        return ()
    of_the_site = root / context.site.name
    directories = [of_the_site / context.stack] if context.stack else directories_of(root, context.site.name)
    has_modules = not _OF_MODULES.isdisjoint(context.host.environment)
    return tuple(_in_use(root, directory, has_modules) for directory in directories)


def directories_of(root: Path, site: str) -> list[Path]:
    """The directories of all stacks of which any prefix is there."""
    of_the_site = root / site
    if not of_the_site.is_dir():
        return []
    return sorted(directory for directory in of_the_site.iterdir() if installation.prefixes(directory))


def _in_use(root: Path, directory: Path, has_modules: bool) -> InUse:
    published = tuple(prefix.name for prefix in installation.prefixes(directory) if installation.at(prefix))
    current = installation.current(directory)
    name = current.name if current and current.name in published else None
    modulefiles = installation.modulefiles(root, directory.parent.name, directory.name)
    shown = (modulefiles / (name or "")).is_file()
    return InUse(directory.name, directory, published, name, shown, has_modules)
