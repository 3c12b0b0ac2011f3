"""Known errors, read from ``recipes/diagnoses/*.yaml``: one entry per cause."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import Field, TypeAdapter, ValidationError

from hidl_cli import paths
from hidl_cli.errors import InvalidInput
from hidl_cli.inputs.fields import Strict
from hidl_cli.inputs.problems import clipped, visible
from hidl_cli.quoting import sh
from hidl_workloads.doctor.finding import Finding, Severity

_ID = r"^HD[0-9]{3}$"
_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")
_MAX_LINE = 300  # characters of the matching line that a finding quotes
_HARMLESS = "harmless.yaml"

Role = Literal["cause", "symptom", "consequence", "unexplained"]
ROLES: tuple[Role, ...] = get_args(Role)

_Entry = TypeVar("_Entry")


class Example(Strict):
    """Output that matches, and its source: a public report, or a program with its version."""

    text: str
    source: str


class Harmless(Strict):
    """Lines that their own program calls harmless, or that it prints in good runs too: no cause is found in them."""

    title: str
    patterns: Annotated[list[str], Field(min_length=1)]
    examples: Annotated[list[Example], Field(min_length=1)]


class Diagnosis(Strict):
    """One cause: patterns that match its output, why it matters, and how to fix it.

    ``role`` orders what is found together: a ``cause`` comes before a ``symptom`` (how a rank ended, or a general
    error that any cause can have), and both before a ``consequence`` (what other ranks print because one died). What
    is ``unexplained`` quotes a program's own error, and is reported only where neither of the first two is found.
    ``fix`` may contain ``{name}`` for a named group of every pattern; the group ``host`` names the node.
    ``unless``: causes that explain this one; it is not reported with any of them.
    """

    id: Annotated[str, Field(pattern=_ID)]
    severity: Severity
    title: str
    patterns: Annotated[list[str], Field(min_length=1)]
    why: str
    fix: str
    role: Role = "cause"
    unless: list[Annotated[str, Field(pattern=_ID)]] = Field(default_factory=list)
    examples: Annotated[list[Example], Field(min_length=1)]

    def first_match(self, text: str) -> re.Match[str] | None:
        """The first match of any pattern in ``text``."""
        found = [match for pattern in self.patterns if (match := compiled(pattern).search(text))]
        return min(found, key=lambda match: match.start(), default=None)

    def finding(self, match: re.Match[str]) -> Finding:
        """Report a match of ``first_match``, with control characters escaped and the fix quoted for the shell."""
        groups = {name: value for name, value in match.groupdict().items() if value}
        fix = _PLACEHOLDER.sub(lambda place: sh(visible(groups.get(place[1], place[1].upper()))), self.fix)
        where = visible(groups["host"]) if "host" in groups else None
        return Finding(self.id, self.severity, self.title, _line(match), self.why, fix, where)


@cache
def load_diagnoses() -> tuple[Diagnosis, ...]:
    """Read every diagnosis, sorted by id. Raises ``InvalidInput`` if a file is invalid."""
    files = (file for file in _folder().glob("*.yaml") if file.name != _HARMLESS)
    known = [entry for file in files for entry in _read(file, TypeAdapter(list[Diagnosis]))]
    return tuple(sorted(known, key=lambda diagnosis: diagnosis.id))


@cache
def load_harmless() -> tuple[Harmless, ...]:
    """Read what is harmless. Raises ``InvalidInput`` if the file is invalid."""
    return tuple(_read(_folder() / _HARMLESS, TypeAdapter(list[Harmless])))


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the catalogue, compiled once."""
    return re.compile(pattern, re.MULTILINE)


def _folder() -> Path:
    return paths.shipped() / "recipes" / "diagnoses"


def _read(file: Path, entries: TypeAdapter[list[_Entry]]) -> list[_Entry]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return entries.validate_python(yaml.load(file.read_text(encoding="utf-8"), loader))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise InvalidInput(f"invalid diagnoses in {file}: {error}") from error


def _line(match: re.Match[str]) -> str:
    """The line of the match, or its lines in one, clipped around it."""
    text = match.string
    begin = max(text.rfind("\n", 0, match.start()) + 1, match.start() - _MAX_LINE // 3)
    end = text.find("\n", match.end())
    lines = text[begin : len(text) if end < 0 else end].strip().replace("\n", " ")
    return clipped(visible(lines), _MAX_LINE)
