"""How far uv is with its downloads, by what it says of them: it names those of a MiB and more as they begin and end."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_BEGUN = re.compile(r"Downloading (\S+) \(([0-9.]+)([KMGT]?i?B)\)")
_ENDED = re.compile(r"\s*Downloaded (\S+)")
_ALL_ENDED = re.compile(r"(Prepared|Installed) \d+ packages? in .*")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclass(frozen=True)
class Downloads:
    """Packages that are downloaded, or will be: ``sizes`` in bytes, and which of them are ``done``."""

    sizes: tuple[tuple[str, float], ...] = ()
    done: frozenset[str] = frozenset()
    over: bool = False

    @property
    def bytes(self) -> float:
        """The bytes of all."""
        return sum(size for _, size in self.sizes)

    @property
    def done_bytes(self) -> float:
        """The bytes of those that are done."""
        return sum(size for name, size in self.sizes if name in self.done)

    @property
    def under_way(self) -> bool:
        """Is any of them still to come?"""
        return bool(self.sizes) and not self.over

    def after(self, line: str) -> Downloads:
        """Return how far it is once uv has said ``line``."""
        if begun := _BEGUN.fullmatch(line):
            name, number, unit = begun.groups()
            others = tuple(each for each in self.sizes if each[0] != name)
            return Downloads((*others, (name, float(number) * _UNITS.get(unit, 0))), self.done - {name})
        if (ended := _ENDED.fullmatch(line)) and ended[1] in dict(self.sizes):
            return Downloads(self.sizes, self.done | {ended[1]})
        if _ALL_ENDED.fullmatch(line):
            return Downloads(self.sizes, self.done, over=True)
        return self

    def after_all(self, lines: Iterable[str]) -> Downloads:
        """Return how far it is once uv has said all these lines."""
        found = self
        for line in lines:
            found = found.after(line)
        return found

    def __str__(self) -> str:
        count = f"{len(self.done)} of {len(self.sizes)} downloads"
        return f"{count}, {self.done_bytes / 2**20:.0f} of {self.bytes / 2**20:.0f} MiB"
