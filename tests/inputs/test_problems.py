"""Problems as people see them: the line, carets exactly under the fault, and nothing that a terminal obeys."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from hidl_cli.errors import Mark, Problem
from hidl_cli.inputs.problems import as_document, render
from hidl_cli.inputs.source import SourceText


def problem(text: str, fault: str, suggestion: str | None = None) -> Problem:
    """A problem whose span is the first occurrence of ``fault`` in ``text``."""
    start = text.index(fault)
    mark = SourceText(Path("site.yaml"), text).mark(start, start + len(fault))
    return Problem("unknown key `coers`", "one of: cores, gpus", ("coers",), mark, suggestion)


def under_the_carets(shown: str) -> str:
    """The part of the quoted line that stands in the cells above the carets."""
    quoted, carets = next(
        (above, below) for above, below in zip(shown.splitlines(), shown.splitlines()[1:], strict=False) if "^" in below
    )
    first, last = carets.index("^"), carets.rindex("^") + 1
    position, under = 0, ""
    for character in quoted:
        if first <= position < last:
            under += character
        position += cell_len(character)
    return under


def test_a_finding_is_shown_as_compilers_show_it() -> None:
    text = "node_types:\n  gpu:\n    coers: 56\n"

    assert render(problem(text, "coers", "cores")) == (
        "error: unknown key `coers`\n"
        " --> site.yaml:3:5\n"
        "  |\n"
        "3 |     coers: 56\n"
        "  |     ^^^^^ did you mean `cores`?\n"
        "  = expected: one of: cores, gpus"
    )


def test_a_finding_without_a_file_has_no_place() -> None:
    assert render(Problem("--set x: no", "a number", suggestion="y")) == (
        "error: --set x: no\n = expected: a number\n = did you mean `y`?"
    )


@pytest.mark.parametrize(
    "line",
    [
        "a: FAULT",
        "\t\ta:\tFAULT",
        "名前: FAULT # 説明",
        "e\N{COMBINING ACUTE ACCENT}: FAULT",
        "\N{WOMAN}: FAULT",
        "x" * 500 + ": FAULT",
        "x" * 500 + "名" * 80 + ": FAULT" + "y" * 500,
        "a\x1b[31m\u202e\xa0: FAULT \x07",
    ],
)
def test_carets_stand_exactly_under_the_fault(line: str) -> None:
    shown = render(problem(f"before: 1\n{line}\nafter: 2\n", "FAULT"))

    assert under_the_carets(shown) == "FAULT"


def test_a_long_line_is_clipped_around_the_fault() -> None:
    shown = render(problem("x" * 100_000 + "FAULT" + "y" * 100_000, "FAULT"))

    (quoted,) = (line for line in shown.splitlines() if "FAULT" in line)
    assert len(quoted) < 180
    assert quoted.startswith("1 | …x")
    assert quoted.endswith("y…")


def test_a_long_fault_is_clipped_itself() -> None:
    shown = render(problem("a: " + "F" * 10_000, "F" * 10_000))

    assert max(len(line) for line in shown.splitlines()) < 180


@pytest.mark.parametrize("hostile", ["\x1b]0;owned\x07", "\x9b31m", "\u202e", "\r", "\u2028", "\ud800", "\x7f", "\xa0"])
def test_nothing_that_a_terminal_obeys_or_hides_gets_through(hostile: str) -> None:
    line = f"a{hostile}b: FAULT"
    mark = Mark(Path(f"si{hostile}te.yaml"), 1, len(line) - 4, 5, line)

    shown = render(Problem(f"message {hostile}", f"expected {hostile}", (), mark, f"suggestion {hostile}"))

    assert all(character.isprintable() or character == "\n" for character in shown)
    assert len(shown.splitlines()) == 6
    assert under_the_carets(shown) == "FAULT"


def test_a_finding_as_a_document_reports_its_place_in_numbers() -> None:
    document = as_document(problem("a: 1\ncoers: 2\n", "coers", "cores"))

    assert document == {
        "message": "unknown key `coers`",
        "expected": "one of: cores, gpus",
        "suggestion": "cores",
        "path": ["coers"],
        "file": "site.yaml",
        "line": 2,
        "column": 1,
        "length": 5,
    }
