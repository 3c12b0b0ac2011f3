"""The border to other languages: every value that becomes part of a script, a modulefile or a printed command line
passes through here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from hidl_cli.errors import InvalidInput


def sh(value: str) -> str:
    """Quote ``value`` as one word of a POSIX shell; ``InvalidInput`` for a NUL, which no argument can carry."""
    if "\0" in value:
        raise InvalidInput(f"the value {value!r} holds a NUL character, which no program's argument can carry")
    return shlex.quote(value)


def sh_line(words: Iterable[str]) -> str:
    """Quote ``words`` as one command line."""
    return " ".join(sh(word) for word in words)


def within_single_quotes(value: str) -> str:
    """Escape ``value`` for a program that puts it between single quotes in a line for a POSIX shell by itself."""
    if "\0" in value:
        raise InvalidInput(f"the value {value!r} holds a NUL character, which no program's argument can carry")
    return value.replace("'", "'\"'\"'")


def comment(value: str) -> str:
    """Return ``value`` fit to stand in a comment line: control characters and line ends become spaces."""
    return "".join(character if character.isprintable() else " " for character in value)


def tcl(value: str) -> str:
    """Quote ``value`` as one word of Tcl, the language of modulefiles; ``InvalidInput`` for a control character."""
    if not value.isprintable():
        raise InvalidInput(f"the value {value!r} holds a control character, which a modulefile cannot carry")
    return "".join(c if c.isalnum() or c in "_./-+@%:," else f"\\{c}" for c in value) or "{}"


def word(value: str) -> str:
    """Return ``value``, which must be fit to stand unquoted in any configuration file, or ``InvalidInput``."""
    if not re.fullmatch(r"[A-Za-z0-9._/@+~:-]+", value):
        raise InvalidInput(f"the value {value!r} cannot stand in a configuration file as it is")
    return value


def lua(value: str) -> str:
    """Quote ``value`` as a string of Lua: every byte that is no letter, digit or harmless mark by its number."""
    plain = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 ._/:,;@+=&|*()~-")
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03d}" for byte in value.encode()) + '"'
