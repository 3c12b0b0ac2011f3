"""What one saved output tells, and the error for a line that is not as its program prints it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hidl_cli.site.probes.columns import heading, is_row, row
from hidl_cli.site.probes.facts import Batch, Fact, Installed, Library, Processor
from hidl_cli.site.probes.gpus import Cards


class Misread(ValueError):
    """A line, counted from 1, that its program would not print; 0: the text as a whole."""

    def __init__(self, line: int, expected: str, found: str) -> None:
        super().__init__(f"line {line}: expected {expected}, found {found}")
        self.line, self.expected, self.found = line, expected, found


@dataclass(frozen=True)
class Told:
    """``words``: what it tells, in a few words for people; ``launchers``: those that it shows to be there."""

    words: str
    batch: Batch | None = None
    processor: Processor | None = None
    cards: Cards | None = None
    interconnect: Fact | None = None
    libraries: tuple[Library, ...] = ()
    launchers: tuple[str, ...] = ()
    installed: tuple[Installed, ...] = ()
    srun_mpi: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def has_facts(self) -> bool:
        """Whether anything in it belongs into a site's file."""
        return any(
            (self.batch, self.processor, self.cards, self.interconnect, self.libraries, self.launchers, self.installed)
        )


def table(text: str, titles: Sequence[str], numbers: Sequence[str] = ()) -> list[tuple[int, Mapping[str, str]]]:
    """The rows of a table with these titles, each with the number of its line.

    ``numbers``: columns that hold whole numbers.

    Raises ``Misread`` for the first row that does not fit.
    """
    lines = text.splitlines()
    at = heading(lines, *titles)
    if at is None:
        raise Misread(0, f"a line with the titles {' '.join(titles)}", "none")
    found: list[tuple[int, Mapping[str, str]]] = []
    for number in range(at + 1, len(lines)):
        if not is_row(lines[number]):
            continue
        cells = row(lines[at], lines[number])
        if cells is None:
            raise Misread(number + 1, f"a row below {' '.join(lines[at].split())}", quoted(lines[number]))
        for title in numbers:
            if not cells.get(title, "0").isdecimal():
                raise Misread(number + 1, f"a number in the column {title}", quoted(cells[title]))
        found.append((number + 1, cells))
    return found


def quoted(text: str) -> str:
    """A piece of a text as messages show it."""
    words = " ".join(text.split())
    return f"`{words[:60]}…`" if len(words) > 60 else f"`{words}`" if words else "nothing"


def count(number: int, word: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {word}{'' if number == 1 else 's'}"
