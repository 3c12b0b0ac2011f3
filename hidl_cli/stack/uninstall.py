"""Removing installations."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.stack import installation
from hidl_cli.stack.exclusive import held
from hidl_cli.stack.lock import SCHEMA

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def installed(root: Path, site: str, stack: str, *, everything: bool) -> list[Path]:
    """The prefixes that ``uninstall`` would remove: the one in use, or all of the stack, those only begun included.

    Raises ``MissingPrecondition`` where there is none, and ``UsageError`` where one is not hidl's: it is reached over
    a link, or does not hold the lock that hidl writes into a prefix first of all.
    """
    if not _NAME.fullmatch(stack):
        raise UsageError(f"invalid stack name {stack!r}")
    directory = root / site / stack
    current = installation.current(directory)
    found = installation.prefixes(directory) if everything else [current] if current else []
    if not found:
        others = len(installation.prefixes(directory))
        hint = f"{others} that are not in use: remove them with --all" if others else "see `hidl stack list`"
        raise MissingPrecondition(f"stack {stack} is not installed for site {site} in {root}", hint=hint)
    for prefix in found:
        if not is_ours(prefix):
            raise UsageError(f"{prefix} is not an installation of hidl; nothing is removed")
    return found


def uninstall(root: Path, site: str, stack: str, *, everything: bool, on_wait: Callable[[str], None]) -> list[Path]:
    """Remove what ``installed`` lists, with its modulefiles and the link to the one in use. Locks and logs stay."""
    installed(root, site, stack, everything=everything)
    directory = root / site / stack
    with installation.changing(directory), held(directory / ".lock", on_wait):
        found = installed(root, site, stack, everything=everything)
        for prefix in found:
            remove(prefix)
    return found


def remove(prefix: Path) -> None:
    """Remove one prefix of those that ``is_ours`` answers for, with its modulefile and the links to it.

    The lock of its stack must be held.
    """
    directory = prefix.parent
    modulefiles = installation.modulefiles(prefix.parents[2], prefix.parents[1].name, directory.name)
    for link in (installation.CURRENT, installation.PREVIOUS):
        if installation.current(directory, link) == prefix:
            (directory / link).unlink()
            if link == installation.CURRENT:
                (modulefiles / ".version").unlink(missing_ok=True)
    (modulefiles / prefix.name).unlink(missing_ok=True)
    installation.discard(prefix)
    if modulefiles.is_dir() and not any(modulefiles.iterdir()):
        modulefiles.rmdir()


def is_ours(prefix: Path) -> bool:
    """Is it reached over no link below its root, and does it hold the lock that hidl writes into it first of all?"""
    root, site, stack = prefix.parents[2], prefix.parents[1].name, prefix.parent.name
    return prefix.resolve() == root.resolve() / site / stack / prefix.name and _has_our_lock(prefix)


def _has_our_lock(prefix: Path) -> bool:
    try:
        with (prefix / "lock.txt").open(encoding="utf-8") as file:
            return file.readline().strip() == f"# schema: {SCHEMA}"
    except (OSError, UnicodeDecodeError):
        return False
