"""The directory overlay: user files take precedence over ``/etc/hidl``, which takes precedence over shipped files."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hidl_cli import paths
from hidl_cli.errors import UsageError

KindName = Literal["site", "stack", "workload"]
Origin = Literal["user", "system", "shipped", "file"]

_SHIPPED: dict[KindName, tuple[str, ...]] = {
    "site": ("site_configs", "site_configs/archive"),
    "stack": ("recipes/stacks",),
    "workload": ("recipes/workloads",),
}
_SUFFIX = ".yaml"
_MAX_LISTED = 16  # maximum number of names listed in a message
_BASE = "_"  # first character of the names of base files, which can only be extended


@dataclass(frozen=True)
class OverlayEntry:
    """A site, stack or workload: the file that defines it, and the files with the same name that this file shadows.

    ``shadows`` is in order of precedence. An entry with the origin ``file`` was given by its path and does not have to
    be part of the overlay.
    """

    kind: KindName
    name: str
    path: Path
    origin: Origin
    shadows: tuple[OverlayEntry, ...] = ()


def directories(kind: KindName) -> tuple[tuple[Origin, Path], ...]:
    """Return the directories for this kind of file, in order of precedence."""
    return (
        ("user", paths.user_config() / f"{kind}s"),
        ("system", paths.system_config() / f"{kind}s"),
        *(("shipped", paths.shipped() / directory) for directory in _SHIPPED[kind]),
    )


def list_all(kind: KindName, *, bases: bool = False) -> tuple[OverlayEntry, ...]:
    """Return all entries of this kind, sorted by name.

    If ``bases`` is set, entries that can only be extended, whose names begin with ``_``, are included.
    """
    found: dict[str, list[OverlayEntry]] = {}
    for origin, directory in directories(kind):
        # There is no is_file() check, because a FIFO or an unreadable file must cause an error instead of being
        # skipped.
        for path in sorted(directory.glob(f"[!.]*{_SUFFIX}")):
            if bases or not is_base(path):
                found.setdefault(path.stem, []).append(OverlayEntry(kind, path.stem, path, origin))
    return tuple(_winner(found[name]) for name in sorted(found))


def is_base(path: Path) -> bool:
    """Return whether the file can only be extended, not used directly."""
    return path.name.startswith(_BASE)


def find(kind: KindName, name: str) -> OverlayEntry:
    """Return an entry by name. Raises ``UsageError`` with suggestions if there is none."""
    entries = {entry.name: entry for entry in list_all(kind)}
    if name in entries:
        return entries[name]
    near = difflib.get_close_matches(name, entries, n=1)
    known = f"Known {kind}s: {', '.join(entries) or 'none'}"
    if len(entries) > _MAX_LISTED:
        known = f"hidl {kind} list shows all {len(entries)}"
    raise UsageError(f"unknown {kind} '{name}'", hint=(f"did you mean '{near[0]}'? " if near else "") + known)


def at_path(kind: KindName, path: Path) -> OverlayEntry:
    """Return the entry for a file in any directory. It shadows the overlay's entries with the same name."""
    same_name = [entry for entry in list_all(kind) if entry.name == path.stem]
    known = [below for entry in same_name for below in (entry, *entry.shadows)]
    for entry in known:
        if entry.path == path.absolute():
            return entry
    return OverlayEntry(kind, path.stem, path, "file", tuple(known))


def _winner(entries: list[OverlayEntry]) -> OverlayEntry:
    """Return the first of several entries with the same name, each of which shadows the following ones."""
    hidden: tuple[OverlayEntry, ...] = ()
    for entry in reversed(entries):
        hidden = (replace(entry, shadows=hidden), *hidden)
    return hidden[0]
