"""A fault by its path in the document, and what helps to word one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hidl_cli.inputs.problems import clipped


@dataclass(frozen=True)
class Fault:
    """A problem that does not know its place in the file yet: ``path`` leads there, to the key with ``on_key``."""

    path: tuple[str | int, ...]
    message: str
    expected: str
    suggestion: str | None = None
    on_key: bool = False


#: A check across fields: sees the plain data, however broken, and yields what is wrong with it.
Check = Callable[[Mapping[str, Any]], Iterable[Fault]]


def nearest(word: object, words: Iterable[str]) -> str | None:
    """The one of ``words`` that ``word`` is most likely a misspelling of, if any."""
    by_folded = {candidate.casefold(): candidate for candidate in words}
    near = difflib.get_close_matches(clipped(str(word)).casefold(), by_folded, n=1)
    return by_folded[near[0]] if near else None


def one_of(words: Iterable[str]) -> str:
    """``words`` as what was expected."""
    return f"one of: {', '.join(words) or '(none)'}"


def dotted(path: Iterable[str | int]) -> str:
    """The path as people write it: ``stacks[0].when``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{clipped(step)}" for step in path)
    return "".join(steps).removeprefix(".")


def mapping(data: Any, key: str) -> Mapping[str, Any]:
    """``data[key]`` where that is a mapping, else an empty one: checks see data of any form."""
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}
