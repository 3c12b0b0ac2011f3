"""Values that are carried over from configuration files, and the values that are left out."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hidl_cli.inputs.problems import clipped
from hidl_cli.redaction import HIDDEN, redact, redact_variable

Key = str | int
#: Name of the node type in files that describe the nodes of a machine without naming a type.
ANY_NODES = "*"
_MOST_LINES = 200  # values left out, listed per file
_LONGEST = 100
#: Keys below which only names are shown, because the values are the user's: variables, commands and headers.
_PRIVATE = ("env_vars", "environment", "prepare_cmds", "prebuild_cmds", "logging", "extra_headers", "mirrors")

#: Placeholder for a value that a reader has taken, so that the indices of other list items do not change.
_TAKEN = object()


@dataclass(frozen=True)
class CarriedValue:
    """A value for the key at ``path`` in the site file. ``why`` describes where the value comes from."""

    path: tuple[str, ...]
    value: Any
    why: str


@dataclass
class ConfigurationFile:
    """A parsed configuration file. Readers take values out of ``data``; the rest is reported as left out.

    Attributes:
        name: Name of the file in messages.
        data: The parsed contents.
        tool: Name of the tool that the file belongs to.
        values: Values for the site file.
        reasons: Values that a reader left out, with its reasons.
        cluster: Name of the machine, if the file contains it.
    """

    name: str
    data: Any
    tool: str = ""
    values: list[CarriedValue] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    cluster: str | None = None
    _original: Any = None

    def __post_init__(self) -> None:
        self._original = copy.deepcopy(self.data)

    def carry(self, path: Sequence[str], value: Any, why: str = "") -> None:
        """Carry a value over, unless it is None or empty."""
        if value is not None and value not in ("", [], {}):
            self.values.append(CarriedValue(tuple(path), value, redact(f"{self.name}: {why}" if why else self.name)))

    def peek(self, *path: Key) -> Any:
        """Return the value at a path without taking it, or None if it is missing or was taken."""
        found: Any = self.data
        for key in path:
            try:
                found = found[key] if isinstance(found, dict) or isinstance(key, int) else None
            except (KeyError, IndexError, TypeError):
                return None
            if found is _TAKEN:
                return None
        return found

    def take(self, *path: Key) -> Any:
        """Take the value at a path. Returns None if it is missing or was taken."""
        found = self.peek(*path)
        if found is not None:
            self.peek(*path[:-1])[path[-1]] = _TAKEN
        return found

    def text(self, *path: Key) -> str | None:
        """Take the string or number at a path, as a string. Other values are left in place."""
        found = self.peek(*path)
        return str(self.take(*path)) if isinstance(found, (str, int, float)) and not isinstance(found, bool) else None

    def number(self, *path: Key) -> int | None:
        """Take the whole number at a path, which may be quoted. Other values are left in place."""
        found = self.peek(*path)
        if isinstance(found, str) and found.strip().isascii() and found.strip().isdigit() and len(found) < 10:
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool):
            return None
        self.take(*path)
        return found

    def words(self, *path: Key) -> list[str]:
        """Take the list of strings, or the single string, at a path. Other values are left in place."""
        found = self.peek(*path)
        if isinstance(found, str):
            return [str(self.take(*path))]
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            return []
        return list(self.take(*path))

    def keys(self, *path: Key) -> list[Any]:
        """Return the keys of the mapping, or the indices of the list, at a path."""
        found = self.peek(*path)
        if isinstance(found, dict):
            return [key for key, value in found.items() if value is not _TAKEN]
        return [at for at, value in enumerate(found) if value is not _TAKEN] if isinstance(found, list) else []

    def leave(self, *path: Key, why: str) -> None:
        """Take the value at a path, but report it as left out, with a reason."""
        found = self.take(*path)
        if not _is_empty(found):
            self.reasons.append(f"{_dotted(path)}: {_shown(path, found)} ({why})")

    def left_out(self) -> list[str]:
        """Return a line for each value that readers left out or did not take."""
        rest = [f"{_dotted(path)}: {_shown(path, value)}" for path, value in _untaken(self.data, self._original, ())]
        lines = [redact(f"{self.name}: {line}") for line in (*self.reasons, *rest)]
        more = len(lines) - _MOST_LINES
        return lines if more <= 0 else [*lines[:_MOST_LINES], f"{self.name}: {more} more values"]


#: Reads the supported settings of a file. ``wanted`` selects the machine if the file describes several.
Reader = Callable[[ConfigurationFile, str | None], None]


def _untaken(data: Any, original: Any, path: tuple[Key, ...]) -> Iterator[tuple[tuple[Key, ...], Any]]:
    """Yield the values that were not taken. If part of a mapping or list was taken, yield its remaining parts."""
    if data is _TAKEN or _is_empty(data):
        return
    if not isinstance(data, (dict, list)) or (path and data == original):
        yield path, data
        return
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield from _untaken(value, original[key], (*path, key))


def _is_empty(value: Any) -> bool:
    """Return whether a value is null, an empty string, or contains only such values."""
    if isinstance(value, dict):
        return all(_is_empty(one) for one in value.values())
    return value is None or value == "" or (isinstance(value, list) and all(_is_empty(one) for one in value))


def _dotted(path: Sequence[Key]) -> str:
    """Format a path: ``packages.gcc.externals[0].spec``."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{clipped(str(key))}" for key in path)
    return text.removeprefix(".")


def _shown(path: Sequence[Key], value: Any) -> str:
    """Format a value without secrets, which may be recognizable by the names around it only."""
    names = [key for key in path if isinstance(key, str)]
    private = next((key for key in names if _is_private(key, names)), "")
    shown = _without_secrets(value, private or (names[-1] if names else ""), names)
    if isinstance(shown, str):
        return clipped(shown, _LONGEST)
    return clipped(json.dumps(shown, default=lambda _: "...", ensure_ascii=False), _LONGEST)


def _is_private(key: str, names: Sequence[str]) -> bool:
    """Return whether only names are shown below a key; ``variables`` are those of a shell in ReFrame's settings."""
    return key in _PRIVATE or (key == "variables" and names[:1] in (["systems"], ["environments"]))


def _without_secrets(value: Any, name: str, names: Sequence[str]) -> Any:
    """Return plain data without secrets. ``name`` is the key of the value, and ``names`` those on its path."""
    if _is_private(name, names):
        return _names_of(value)
    if isinstance(value, dict):
        return {redact(str(key)): _without_secrets(one, str(key), names or [str(key)]) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        is_pair = len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], (str, int, float))
        if is_pair:  # a variable
            return [redact(value[0]), _without_secrets(value[1], value[0], names)]
        return [_without_secrets(one, name, names) for one in value]
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        shown = redact_variable(name, redact(str(value)))
        return value if shown == str(value) else shown
    return "..." if value is _TAKEN else value


def _names_of(value: Any) -> str:
    """Return the names of variables, or the number of other values."""
    if isinstance(value, dict):
        names = [str(key) for key, one in value.items() if one is not _TAKEN]
    else:
        found = value if isinstance(value, (list, tuple)) else [value]
        names = [str(one[0]) for one in found if isinstance(one, (list, tuple)) and len(one) == 2]
        if len(names) < len(found):
            names = []
    return f"{redact(', '.join(names))}: {HIDDEN}" if names else HIDDEN


def first(values: Mapping[Any, Any], *keys: str) -> str | None:
    """Return the value of the first of these keys that is a nonempty string, or None."""
    return next((values[key] for key in keys if isinstance(values.get(key), str) and values[key]), None)
