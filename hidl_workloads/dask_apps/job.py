"""An application of this package, as the program that runs it receives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class WrongResult(Exception):
    """A result is not what the data say that it must be."""


@dataclass(frozen=True)
class Job:
    """Data in the workers' memory, made for one run, and the work on them.

    ``bytes`` are those of the data; ``work`` is what is timed, and ``check`` raises
    ``WrongResult`` for what it returned. The data live as long as this object.
    """

    bytes: int
    work: Callable[[], Any]
    check: Callable[[Any], None]


def agree(what: str, found: float, known: float, tolerance: float = 0.0) -> None:
    """Raise ``WrongResult`` where ``found`` is further from ``known`` than ``tolerance`` (absolute)."""
    if not abs(found - known) <= tolerance:  # NaN is wrong too
        raise WrongResult(f"the result is wrong: {what} is {found!r}, but must be {known!r}")
