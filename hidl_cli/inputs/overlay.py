"""The overlay: a user's files come before ``/etc/hidl``'s, and those before the files that ship with hidl."""

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
_LISTED = 16  # names that one message lists
_BASE = "_"  # what the names of bases begin with


@dataclass(frozen=True)
class Entry:
    """One known site, stack or workload: the file that counts, and the files of the same name that it hides.

    ``shadows`` is ordered: its first entry is the one that would count if this one were not there. An entry of origin
    ``file`` was named by its path and is not necessarily part of the overlay.
    """

    kind: KindName
    name: str
    path: Path
    origin: Origin
    shadows: tuple[Entry, ...] = ()


def directories(kind: KindName) -> tuple[tuple[Origin, Path], ...]:
    """Where files of this kind are looked for, the first to win first."""
    return (
        ("user", paths.user_config() / f"{kind}s"),
        ("system", paths.system_config() / f"{kind}s"),
        *(("shipped", paths.shipped() / directory) for directory in _SHIPPED[kind]),
    )


def list_all(kind: KindName, *, bases: bool = False) -> tuple[Entry, ...]:
    """Every known entry of this kind, sorted by name.

    ``bases``: with those that can be extended alone, and not used themselves; their names begin with ``_``.
    """
    found: dict[str, list[Entry]] = {}
    for origin, directory in directories(kind):
        # is_file() is not asked: a FIFO or an unreadable file of that name is reported when it is read, not passed over
        for path in sorted(directory.glob(f"[!.]*{_SUFFIX}")):
            if bases or not is_base(path):
                found.setdefault(path.stem, []).append(Entry(kind, path.stem, path, origin))
    return tuple(_winner(found[name]) for name in sorted(found))


def is_base(path: Path) -> bool:
    """Is this file one that others extend, and that stands for nothing by itself?"""
    return path.name.startswith(_BASE)


def find(kind: KindName, name: str) -> Entry:
    """The entry of that name; ``UsageError`` with the nearest name, and all if they are few, where there is none."""
    entries = {entry.name: entry for entry in list_all(kind)}
    if name in entries:
        return entries[name]
    near = difflib.get_close_matches(name, entries, n=1)
    known = f"Known {kind}s: {', '.join(entries) or 'none'}"
    if len(entries) > _LISTED:
        known = f"hidl {kind} list shows all {len(entries)}"
    raise UsageError(f"unknown {kind} '{name}'", hint=(f"did you mean '{near[0]}'? " if near else "") + known)


def at_path(kind: KindName, path: Path) -> Entry:
    """The entry that a file stands for, in any directory; the overlay's entries of its name count as hidden by it."""
    same_name = [entry for entry in list_all(kind) if entry.name == path.stem]
    known = [below for entry in same_name for below in (entry, *entry.shadows)]
    for entry in known:
        if entry.path == path.absolute():
            return entry
    return Entry(kind, path.stem, path, "file", tuple(known))


def _winner(entries: list[Entry]) -> Entry:
    """The first of the entries of one name, each hiding those after it."""
    hidden: tuple[Entry, ...] = ()
    for entry in reversed(entries):
        hidden = (replace(entry, shadows=hidden), *hidden)
    return hidden[0]
