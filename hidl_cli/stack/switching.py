"""Which installation of a stack is in use: another one, or the one before.

Runs under way keep what they started with: their job scripts name the prefix by its id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.quoting import sh
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_cli.stack.exclusive import held
from hidl_cli.stack.installation import Installation
from hidl_cli.stack.sharing import shared


@dataclass(frozen=True)
class Switch:
    """``used`` is in use now, ``before`` was until now; both are the same where nothing had to be done."""

    used: Installation
    before: Path | None


def use(site: Site, stack: str, which: str, *, root: Path, on_wait: Callable[[str], None]) -> Switch:
    """Make the installation whose id starts with ``which`` the one in use.

    Raises what ``choose`` raises, and ``MissingPrecondition`` where it is of another hidl.
    """
    return _switch(site, choose(site, stack, which, root=root), root, on_wait)


def choose(site: Site, stack: str, which: str, *, root: Path) -> Installation:
    """The installation whose id starts with ``which``.

    Raises ``MissingPrecondition`` where there is none, and ``UsageError`` where there are several.
    """
    fitting = [found for found in _published(root / site.name / stack) if found.prefix.name.startswith(which)]
    if not which or not fitting:
        raise MissingPrecondition(
            f"stack {stack} has no installation {which!r} for site {site.name} in {root}",
            hint=_others(site, stack, root),
        )
    if len(fitting) > 1:
        raise UsageError(
            f"{len(fitting)} installations of stack {stack} match {which!r}", hint=_others(site, stack, root)
        )
    return fitting[0]


def rollback(site: Site, stack: str, *, root: Path, on_wait: Callable[[str], None]) -> Switch:
    """Make the installation that was in use before the one in use again; a second time takes that back.

    ``MissingPrecondition`` where none was, or it is gone.
    """
    before = installation.current(root / site.name / stack, installation.PREVIOUS)
    found = installation.at(before) if before else None
    if found is None:
        gone = f"the installation {before} is gone or damaged" if before else "no other one was in use before"
        raise MissingPrecondition(
            f"stack {stack} on site {site.name} cannot be rolled back: {gone}", hint=_others(site, stack, root)
        )
    return _switch(site, found, root, on_wait)


def _switch(site: Site, wanted: Installation, root: Path, on_wait: Callable[[str], None]) -> Switch:
    directory, stack = wanted.prefix.parent, wanted.prefix.parent.name
    if foreign := installation.of_another_hidl(wanted):
        raise MissingPrecondition(foreign, hint=f"use it with that hidl, or: {installation.hint(stack, site, root)}")
    if installation.current(directory) == wanted.prefix:
        return Switch(wanted, wanted.prefix)
    with shared(site, root), installation.changing(directory), held(directory / ".lock", on_wait):
        before = installation.current(directory)
        installation.publish(wanted.prefix)
    return Switch(wanted, before)


def _published(directory: Path) -> list[Installation]:
    return [found for prefix in installation.prefixes(directory) if (found := installation.at(prefix))]


def _others(site: Site, stack: str, root: Path) -> str:
    """What can be used instead."""
    directory = root / site.name / stack
    used = installation.current(directory)
    ids = [f"{each.prefix.name}{' (in use)' * (each.prefix == used)}" for each in _published(directory)]
    return (
        f"installed: {', '.join(ids)}; hidl stack use {sh(stack)} ID" if ids else installation.hint(stack, site, root)
    )
