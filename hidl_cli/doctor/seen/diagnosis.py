"""What the known error texts are, read from ``recipes/diagnoses/*.yaml``: one entry for each cause."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from hidl_cli import paths
from hidl_cli.errors import InvalidInput
from hidl_cli.inputs.fields import Strict
from hidl_cli.inputs.findings import clipped, visible
from hidl_cli.quoting import sh
from hidl_workloads.doctor.finding import Finding, Severity

_ID = r"^HD[0-9]{3}$"
_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")
_SHOWN = 300  # characters of the line that is shown


class Example(Strict):
    """A text that an entry knows, and where it was seen: a public report, or a program with its version."""

    text: str
    source: str


class Diagnosis(Strict):
    """One cause: the patterns of the lines that show it, why it matters, and how it is mended.

    ``mend`` may hold ``{name}`` for a named group of every pattern; a group ``host`` is where it happened. ``unless``
    names causes of which this one is a mere consequence: where one of them is seen too, this is not told. ``not_after``
    is a text of the program's own end: what is seen behind it is its consequence.
    """

    id: Annotated[str, Field(pattern=_ID)]
    severity: Severity
    title: str
    patterns: Annotated[list[str], Field(min_length=1)]
    why: str
    mend: str
    unless: list[Annotated[str, Field(pattern=_ID)]] = Field(default_factory=list)
    not_after: str | None = None
    examples: Annotated[list[Example], Field(min_length=1)]

    def first_in(self, text: str) -> re.Match[str] | None:
        """The first place of ``text`` that one of the patterns fits."""
        end = _compiled(self.not_after).search(text) if self.not_after else None
        before = end.start() if end else len(text)
        found = [match for pattern in self.patterns if (match := _compiled(pattern).search(text, 0, before))]
        return min(found, key=lambda match: match.start(), default=None)

    def finding(self, match: re.Match[str]) -> Finding:
        """What is told of a place that ``first_in`` found: nothing of the text reaches a terminal or a shell raw."""
        groups = {name: value for name, value in match.groupdict().items() if value}
        mend = _PLACEHOLDER.sub(lambda place: sh(visible(groups.get(place[1], place[1].upper()))), self.mend)
        where = visible(groups["host"]) if "host" in groups else None
        return Finding(self.id, self.severity, self.title, _line(match), self.why, mend, where)


@cache
def diagnoses() -> tuple[Diagnosis, ...]:
    """Every known cause, by id; ``InvalidInput`` where the files are not what they should be."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = TypeAdapter(list[Diagnosis])
    known: list[Diagnosis] = []
    for file in sorted((paths.shipped() / "recipes" / "diagnoses").glob("*.yaml")):
        try:
            known += entries.validate_python(yaml.load(file.read_text(encoding="utf-8"), loader))
        except (OSError, yaml.YAMLError, ValidationError) as error:
            raise InvalidInput(f"the known error texts in {file} cannot be read: {error}") from error
    return tuple(sorted(known, key=lambda diagnosis: diagnosis.id))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


def _line(match: re.Match[str]) -> str:
    """The line of the match, shortened around it."""
    text = match.string
    begin = max(text.rfind("\n", 0, match.start()) + 1, match.start() - _SHOWN // 3)
    end = text.find("\n", match.end())
    return clipped(visible(text[begin : len(text) if end < 0 else end].strip()), _SHOWN)
