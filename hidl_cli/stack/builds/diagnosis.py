"""The first real error in the log of a build: what follows it is mostly its consequence."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ERRORS = re.compile(
    r"""
      .+:\d+(:\d+)?:\ (fatal\ )?error:\ .+                        # GCC, Clang
    | .*\b(fatal\ error|internal\ compiler\ error):\ .+           # GCC's driver, killed for want of memory
    | \S*ld(\.\w+)?:\ (?!warning).*(cannot\ find|undefined).*     # the linker
    | .*undefined\ reference\ to\ .+
    | CMake\ Error\b.*
    | configure:\ error:\ .+
    | (\w+\.)*\w*(Error|Exception|Exit)(:\ .+)?                   # Python
    | error:\ .+                                                  # setuptools
    | .*No\ space\ left\ on\ device.*
    | make(\[\d+\])?:\ \*\*\*\ (?!\[).+                           # no rule to make a target
    """,
    re.VERBOSE,
)
_CMAKE_ERROR = re.compile(r"CMake Error\b.*:$")


def first_error(lines: Iterable[str]) -> str | None:
    """The first line with an error, CMake's with what stands below; None where there is none."""
    waiting: str | None = None
    for line in (line.strip() for line in lines):
        if waiting is not None:
            if line:
                return f"{waiting} {line}"
        elif _ERRORS.fullmatch(line):
            if not _CMAKE_ERROR.fullmatch(line):
                return line
            waiting = line
    return waiting
