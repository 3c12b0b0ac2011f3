"""Quoting for other languages. Every value in a script, a modulefile or a printed command line is quoted here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from hidl_cli.errors import InvalidInput


def sh(value: str) -> str:
    """Quote ``value`` as a single word for a POSIX shell; raises ``InvalidInput`` for a NUL character."""
    if "\0" in value:
        raise InvalidInput(f"the value {value!r} contains a NUL character, which is invalid in a program's arguments")
    return shlex.quote(value)


def sh_line(words: Iterable[str]) -> str:
    """Quote ``words`` as a command line."""
    return " ".join(sh(word) for word in words)


def within_single_quotes(value: str) -> str:
    """Escape ``value`` for a program that inserts it between single quotes in a shell command."""
    if "\0" in value:
        raise InvalidInput(f"the value {value!r} contains a NUL character, which is invalid in a program's arguments")
    return value.replace("'", "'\"'\"'")


def comment(value: str) -> str:
    """Return ``value`` for use in a comment, in which control characters and newlines are replaced with spaces."""
    return "".join(character if character.isprintable() else " " for character in value)


def tcl(value: str) -> str:
    """Quote ``value`` as a single Tcl word (for modulefiles); raises ``InvalidInput`` for a control character."""
    if not value.isprintable():
        raise InvalidInput(f"the value {value!r} contains a control character, which is invalid in a modulefile")
    return "".join(c if c.isalnum() or c in "_./-+@%:," else f"\\{c}" for c in value) or "{}"


def word(value: str) -> str:
    """Return ``value`` if it needs no quotes in any configuration file, and raise ``InvalidInput`` otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9._/@+~:-]+", value):
        raise InvalidInput(f"the value {value!r} cannot be used in a configuration file without quotes")
    return value


def lua(value: str) -> str:
    """Quote ``value`` as a Lua string; bytes other than letters, digits and safe punctuation become numeric escapes."""
    plain = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 ._/:,;@+=&|*()~-")
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03d}" for byte in value.encode()) + '"'
