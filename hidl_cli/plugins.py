"""Plug-ins: entry points of installed packages, and the registries that they extend.

A package adds a launcher, a scheduler, a provider or a parser with an entry point of one of ``GROUPS``::

    [project.entry-points."hidl.launchers"]
    toy = "hidl_toy:Toy"

Packages are searched on first use, and a plug-in is imported only when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Generic, Literal, TypeVar, get_args

from hidl_cli.errors import InvalidInput, MissingPrecondition, UsageError

Group = Literal["hidl.launchers", "hidl.schedulers", "hidl.providers", "hidl.parsers"]

GROUPS: tuple[Group, ...] = get_args(Group)
T = TypeVar("T")


@dataclass(frozen=True)
class PluginEntry:
    """An entry point: ``target`` is ``module:attribute``, ``package`` is the distribution with its version."""

    group: Group
    name: str
    target: str
    package: str

    def __str__(self) -> str:
        return f"{self.name} = {self.target} ({self.group}) of package {self.package}"

    def load(self) -> Any:
        """Import the target. Raises ``MissingPrecondition`` if that fails for any reason."""
        try:
            return load_target(self.target)
        except (Exception, SystemExit) as error:  # third-party code
            raise self.broken(f"{type(error).__name__}: {error}") from error

    def broken(self, why: str) -> MissingPrecondition:
        """Return the error for a plug-in that cannot be used."""
        return MissingPrecondition(
            f"plug-in {self} cannot be loaded: {why}",
            hint=f"upgrade or uninstall {self.package.partition(' ')[0]}; `hidl config plugins` lists all plug-ins",
        )


def entries(group: Group) -> tuple[PluginEntry, ...]:
    """Return the installed plug-ins of a group, sorted by name and package."""
    return all_entries()[group]


@cache
def all_entries() -> dict[Group, tuple[PluginEntry, ...]]:
    """Return the installed plug-ins of all groups. Searching all packages takes 5 ms."""
    from importlib.metadata import entry_points

    installed = entry_points()
    found = {
        group: [
            PluginEntry(
                group, point.name, point.value, f"{point.dist.name} {point.dist.version}" if point.dist else "unknown"
            )
            for point in installed.select(group=group)
        ]
        for group in GROUPS
    }
    return {group: tuple(sorted(each, key=lambda entry: (entry.name, entry.package))) for group, each in found.items()}


def load_target(target: str) -> Any:
    """Import ``module:attribute`` and return the attribute."""
    module, _, attribute = target.partition(":")
    found: Any = import_module(module)
    for name in filter(None, attribute.split(".")):
        found = getattr(found, name)
    return found


@dataclass(frozen=True, eq=False)
class Registry(Generic[T]):
    """Implementations of an interface, by name. Some are built in, and plug-ins can add others.

    Attributes:
        what: Noun for an implementation in messages, such as ``launcher``.
        built_in: Mapping of names to ``module:attribute``.
        members: Attributes that an implementation must have, checked when a plug-in is loaded.
        make: Converts the loaded target into the value that ``get`` returns.
    """

    group: Group
    what: str
    built_in: Mapping[str, str]
    members: tuple[str, ...] = ()
    make: Callable[[Any], Any] = lambda found: found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.built_in or self.is_plugin(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def is_plugin(self, name: str) -> bool:
        """Return whether an installed package provides this name."""
        return any(entry.name == name for entry in entries(self.group))

    def names(self) -> tuple[str, ...]:
        """Return all names, starting with the built-in ones."""
        return tuple(dict.fromkeys([*self.built_in, *(entry.name for entry in entries(self.group))]))

    def get(self, name: str) -> T:
        """Return the implementation with this name.

        Raises ``UsageError`` if the name is unknown, ``InvalidInput`` if it is defined twice and
        ``MissingPrecondition`` if the plug-in cannot be loaded.
        """
        if name not in self:
            raise UsageError(f"unknown {self.what} {name!r}", hint=f"known {self.what}s: {', '.join(self.names())}")
        if conflict := self.conflict(name):
            raise conflict
        if name in self.built_in:
            made: T = self.make(load_target(self.built_in[name]))
            return made
        return self._plugged_in(next(entry for entry in entries(self.group) if entry.name == name))

    def usable(self) -> Iterator[tuple[str, T]]:
        """Yield the name and the implementation of each entry that can be loaded."""
        for name in self.names():
            try:
                yield name, self.get(name)
            except (InvalidInput, MissingPrecondition):
                continue

    def conflict(self, name: str) -> InvalidInput | None:
        """Return the error for a name that is defined more than once, or None otherwise."""
        found = [entry for entry in entries(self.group) if entry.name == name]
        owners = [*(["hidl itself"] if name in self.built_in else []), *(f"package {e.package}" for e in found)]
        if len(owners) < 2:
            return None
        return InvalidInput(
            f"{self.what} {name!r} is defined twice: by {' and by '.join(owners)} ({self.group})",
            hint=f"uninstall {found[-1].package.partition(' ')[0]}, or rename its entry point",
        )

    def problems(self) -> Iterator[tuple[PluginEntry, str | None]]:
        """Load every plug-in, and yield each with its problem (None if it works)."""
        for entry in entries(self.group):
            conflict = self.conflict(entry.name)
            try:
                if not conflict:
                    self._plugged_in(entry)
                yield entry, conflict.message if conflict else None
            except MissingPrecondition as error:
                yield entry, error.message

    def _plugged_in(self, entry: PluginEntry) -> T:
        found = entry.load()
        try:
            made: T = self.make(found)
        except (Exception, SystemExit) as error:  # third-party code
            raise entry.broken(f"{type(error).__name__}: {error}") from error
        if missing := [member for member in self.members if not hasattr(made, member)]:
            raise entry.broken(f"a {self.what} must have {', '.join(f'`{one}`' for one in missing)}")
        if getattr(made, "name", entry.name) != entry.name:
            raise entry.broken(f"its `name` is {getattr(made, 'name', None)!r}, expected {entry.name!r}")
        return made
