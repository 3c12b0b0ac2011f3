"""A finding: one fault in a file that a person wrote, with its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mark:
    """A place in a file: ``line`` and ``column`` count from 1; ``length`` is how many characters it spans."""

    file: Path
    line: int
    column: int
    length: int = 1


@dataclass(frozen=True)
class Finding:
    """One fault: what is wrong, where, what was expected there, and the nearest valid word where one is near.

    ``path`` is the place in the document (``("node_types", "gpu", "cores")``), ``mark`` its place in the file, or None
    where the fault has no line (a value given on the command line).
    """

    message: str
    expected: str
    path: tuple[str | int, ...] = ()
    mark: Mark | None = None
    suggestion: str | None = None
