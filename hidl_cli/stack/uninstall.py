"""Removing installations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.quoting import sh
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


def uninstall(
    root: Path,
    site: str,
    stack: str,
    *,
    everything: bool,
    reasons: Callable[[Path], Iterable[str]],
    on_wait: Callable[[str], None],
) -> list[Path]:
    """Remove installations of a stack, with their modulefiles and the link to the one in use. Locks and logs stay.

    Args:
        root: Directory of the installations.
        site: Name of the site.
        stack: Name of the stack.
        everything: Remove all installations of the stack, not only the one in use.
        reasons: Return why a prefix must stay. Nothing is removed if one prefix must.
        on_wait: Called with one line for the user if another process holds the lock of the stack.

    Raises:
        MissingPrecondition: Nothing is installed, or a prefix must stay.
        UsageError: A prefix is not an installation of hidl.
    """
    installed(root, site, stack, everything=everything)
    directory = root / site / stack
    with installation.changing(directory), held(directory / ".lock", on_wait):
        found = installed(root, site, stack, everything=everything)
        kept = [f"{prefix}: {reason}" for prefix in found for reason in reasons(prefix)]
        if kept:
            raise MissingPrecondition(
                "the installation is in use; nothing was removed" + "".join(f"\n  {line}" for line in kept),
                hint=f"wait until it is no longer needed, or: hidl uninstall {sh(stack)} --force",
            )
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
