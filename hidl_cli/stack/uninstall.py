"""Removing installations."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.stack import installation
from hidl_cli.stack.exclusive import held
from hidl_cli.stack.install import discard
from hidl_cli.stack.lock import SCHEMA

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def installed(root: Path, site: str, stack: str, *, everything: bool) -> list[Path]:
    """The prefixes that ``uninstall`` would remove: the one in use, or all of the stack, those only begun included.

    Raises ``MissingPrecondition`` where there is none, and ``UsageError`` where one is not hidl's: it is reached over
    a link, or does not hold the lock that hidl writes into a prefix first of all.
    """
    if not _NAME.fullmatch(stack):
        raise UsageError(f"{stack!r} is no name of a stack")
    directory = root / site / stack
    current = installation.current(directory)
    found = installation.prefixes(directory) if everything else [current] if current else []
    if not found:
        others = len(installation.prefixes(directory))
        hint = f"{others} that are not in use: remove them with --all" if others else "see `hidl stack list`"
        raise MissingPrecondition(f"stack {stack} is not installed for site {site} in {root}", hint=hint)
    for prefix in found:
        if prefix.resolve() != root.resolve() / site / stack / prefix.name or not _has_our_lock(prefix):
            raise UsageError(f"{prefix} is no installation of hidl's, and stays as it is")
    return found


def uninstall(root: Path, site: str, stack: str, *, everything: bool, on_wait: Callable[[str], None]) -> list[Path]:
    """Remove what ``installed`` lists, with its modulefiles and the link to the one in use. Locks and logs stay."""
    installed(root, site, stack, everything=everything)
    directory = root / site / stack
    modulefiles = installation.modulefiles(root, site, stack)
    with held(directory / ".lock", on_wait):
        found = installed(root, site, stack, everything=everything)
        for prefix in found:
            if installation.current(directory) == prefix:
                (directory / installation.CURRENT).unlink()
                (modulefiles / ".version").unlink(missing_ok=True)
            (modulefiles / prefix.name).unlink(missing_ok=True)
            discard(prefix)
        if modulefiles.is_dir() and not any(modulefiles.iterdir()):
            modulefiles.rmdir()
    return found


def _has_our_lock(prefix: Path) -> bool:
    try:
        with (prefix / "lock.txt").open(encoding="utf-8") as file:
            return file.readline().strip() == f"# schema: {SCHEMA}"
    except (OSError, UnicodeDecodeError):
        return False
