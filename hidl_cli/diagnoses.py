"""Search output of any length for known errors in a single pass and with bounded memory.

Most blocks of a long log contain no error, and most lines differ from others only in their digits. Therefore, only
lines that differ in more than digits are searched for the fixed words of all patterns. Each pattern whose word is found
is then matched around that word.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, TypeVar, get_args

from pydantic import Field, TypeAdapter, ValidationError

from hidl_cli import paths
from hidl_cli.errors import HidlError, InvalidInput
from hidl_cli.inputs.check import Strict
from hidl_cli.inputs.problems import clipped, visible
from hidl_cli.quoting import sh
from hidl_cli.record import Run
from hidl_cli.redaction import read_end
from hidl_workloads.doctor.finding import SEVERITIES, Evidence, Finding, Rules, Severity

_BLOCK = 1024 * 1024  # number of bytes read at once
_STEM = 4  # number of letters in the substring that is searched for first
_OVERLAP = 4096  # bytes at the end of an overlong line that are searched again with the next block
_LONGEST_LINE = 2000  # number of characters around a match that are searched for harmless patterns
_PLACES = 100  # occurrences of a word in a block; beyond that, searching the whole block is faster
_TRIES = 100  # number of candidates for a program's own error message that are examined per block
_DIGITS = bytes.maketrans(b"0123456789", b"0000000000")
_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]{0,30}[ -/]{0,5}[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\))")
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:P<\w+>|<?[=!]|:)|\{[0-9,]+\}|.", re.DOTALL
)  # a token of a regular expression


@dataclass(frozen=True)
class Cause:
    """A finding and its line number, counted from 1."""

    finding: Finding
    line: int


@dataclass(frozen=True)
class _Known:
    """A diagnosis's pattern and a word that each of its matches contains. A match spans at most two lines."""

    diagnosis: Diagnosis
    pattern: re.Pattern[str]
    word: str

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """Yield all matches in ``text`` in order."""
        begin = after = 0
        for _ in range(_PLACES):
            if (place := text.find(self.word, after)) < 0:
                return
            begin = max(begin, text.rfind("\n", 0, max(0, text.rfind("\n", 0, place))) + 1)
            after = _end_of_line(text, place)
            for match in self.pattern.finditer(text, begin, _end_of_line(text, after + 1)):
                yield match
                begin = match.end()
        yield from self.pattern.finditer(text, begin)


def _end_of_line(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def read_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Read whole lines in blocks of about 1 MiB; a longer line is split into overlapping pieces."""
    kept = b""
    while chunk := file.read(_BLOCK):
        block = kept + chunk
        end = block.rfind(b"\n") + 1
        yield block[: end or None]
        kept = block[end:] if end else block[-_OVERLAP:]
    if kept:
        yield kept


def search_file(name: str) -> list[Cause]:
    """Find known causes of failures in a file, or in stdin for ``-``; raises ``OSError`` if it cannot be read."""
    if name == "-":
        return search(read_blocks(sys.stdin.buffer))
    with Path(name).open("rb") as file:
        return search(read_blocks(file))


def search(blocks: Iterable[bytes]) -> list[Cause]:
    """Find known causes of failures in blocks of whole lines, and return each once, starting with the most likely one.

    Errors come before warnings; within a severity, causes are sorted by role and position. The result excludes causes
    that another cause explains, a program's own error message if a cause or symptom explains it, and matches in
    harmless lines. It also excludes consequences if there is an error with another role. Escape sequences stay in the
    quoted line unless they interrupt the match.
    """
    found: dict[str, tuple[Diagnosis, tuple[int, int], Cause]] = {}
    lines = 0
    for number, block in enumerate(blocks):
        for text in dict.fromkeys((block, _ESCAPE.sub(b"", block) if b"\x1b" in block else block)):
            for diagnosis, match, line in _first_matches(text, known=found):
                cause = Cause(diagnosis.finding(match), lines + line)
                found[diagnosis.id] = diagnosis, (number, match.start()), cause
        lines += block.count(b"\n")
    if any(_explains(diagnosis, found) for diagnosis, _, _ in found.values()):
        found = {rule: one for rule, one in found.items() if one[0].role != "unexplained"}
    kept = [one for one in found.values() if not found.keys() & set(one[0].unless)]
    if any(diagnosis.severity == "error" and diagnosis.role != "consequence" for diagnosis, _, _ in kept):
        kept = [one for one in kept if one[0].role != "consequence"]
    kept.sort(key=lambda one: (SEVERITIES.index(one[0].severity), ROLES.index(one[0].role), one[1]))
    return [cause for _, _, cause in kept]


def _explains(diagnosis: Diagnosis, found: Container[str]) -> bool:
    """Return whether the diagnosis provides more information than a program's own error message."""
    return (
        diagnosis.severity == "error"
        and diagnosis.role in ("cause", "symptom")
        and not any(other in found for other in diagnosis.unless)
    )


def fixed_word(pattern: str) -> str:
    """Return the longest text that every match of ``pattern`` contains, or an empty string if there is none."""
    words, depth = [""], 0
    for token in _TOKEN.findall(pattern):
        depth += token.startswith("(")
        if depth or token[0] in "(.[^$*?+{|" or (token[0] == "\\" and token[1].isalnum()):
            if token[0] in "*?{":
                words[-1] = words[-1][:-1]
            words.append("")
        else:
            words[-1] += token[-1]
        depth -= token == ")"
    return max(words, key=len)


@cache
def _by_word() -> dict[bytes, list[_Known]]:
    """Return all patterns, grouped by a word that all their matches contain. Digits in the word are replaced with 0."""
    table: dict[bytes, list[_Known]] = {}
    for diagnosis in load_diagnoses():
        for pattern in diagnosis.patterns:
            word = fixed_word(pattern)
            known = _Known(diagnosis, compiled(pattern), word)
            table.setdefault(word.encode().translate(_DIGITS), []).append(known)
    return table


@cache
def _by_stem() -> dict[bytes, list[bytes]]:
    """Return the words of all patterns, grouped by stem: the short substring of a word that most words contain."""
    parts = {word: {word[at : at + _STEM] for at in range(max(1, len(word) - _STEM + 1))} for word in _by_word()}
    frequency = Counter(part for those in parts.values() for part in those)
    table: dict[bytes, list[bytes]] = {}
    for word, those in parts.items():
        table.setdefault(max(those, key=lambda part: (frequency[part], part)), []).append(word)
    return table


def _likely(block: bytes) -> Iterator[_Known]:
    """Yield the patterns whose words occur in the block, ignoring digits."""
    different = b"\n".join(set(block.translate(_DIGITS).split(b"\n")))
    for stem, words in _by_stem().items():
        if stem in different:
            for word in words:
                if word in different:
                    yield from _by_word()[word]


def _first_matches(block: bytes, known: Container[str]) -> Iterator[tuple[Diagnosis, re.Match[str], int]]:
    """Yield each diagnosis not in ``known`` with its first match outside of harmless lines, and the line number."""
    likely = list(_likely(block))
    sought = [each for each in likely if each.diagnosis.id not in known]
    named = [each.pattern for each in likely if each.diagnosis.role != "unexplained"]
    plain = block.decode("utf-8", "replace") if sought else ""
    text = plain.replace("\r\n", " \n").replace("\r", "\n")  # preserves the length
    first: dict[str, tuple[Diagnosis, re.Match[str], int]] = {}
    for each in sought:
        diagnosis, matches = each.diagnosis, each.matches(text)
        if diagnosis.role == "unexplained":
            matches = (match for match in islice(matches, _TRIES) if not _matches(named, match))
        match = next((match for match in matches if not _matches(_harmless(), match)), None)
        if match and (diagnosis.id not in first or match.start() < first[diagnosis.id][1].start()):
            first[diagnosis.id] = diagnosis, match, plain.count("\n", 0, match.start()) + 1
    return iter(first.values())


@cache
def _harmless() -> tuple[re.Pattern[str], ...]:
    return tuple(compiled(pattern) for each in load_harmless() for pattern in each.patterns)


def _matches(patterns: Iterable[re.Pattern[str]], match: re.Match[str]) -> bool:
    """Return whether any of ``patterns`` occurs in the line that contains a match."""
    text, begin, end = match.string, match.start(), match.end()
    begin = max(text.rfind("\n", 0, begin) + 1, begin - _LONGEST_LINE)
    stop = text.find("\n", end, end + _LONGEST_LINE)
    line = text[begin : end + _LONGEST_LINE if stop < 0 else stop]
    return any(pattern.search(line) for pattern in patterns)


# The known errors, read from ``recipes/diagnoses/*.yaml``.


_ID = r"^HD[0-9]{3}$"
_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")
_MAX_LINE = 300  # maximum number of characters that a finding quotes from a line
_HARMLESS = "harmless.yaml"

Role = Literal["cause", "symptom", "consequence", "unexplained"]
ROLES: tuple[Role, ...] = get_args(Role)

_Entry = TypeVar("_Entry")


class Example(Strict):
    """Example output that matches, and its source, which is a public report or a program with its version."""

    text: str
    source: str


class Harmless(Strict):
    """Lines that never indicate a cause, because programs call them harmless or also print them in successful runs."""

    title: str
    patterns: Annotated[list[str], Field(min_length=1)]
    examples: Annotated[list[Example], Field(min_length=1)]


class Diagnosis(Strict):
    """An entry of the catalogue: patterns that match a cause's output, why it matters, and how to fix it.

    ``role`` orders the findings in a log: a ``cause`` comes before a ``symptom`` (how a rank ended, or an error with
    many possible causes), and both come before a ``consequence`` (the output of other ranks after one has died). An
    ``unexplained`` entry quotes a program's own error message, and is only reported if there is neither a cause nor a
    symptom. ``fix`` may contain ``{name}`` for a named group of every pattern; the group ``host`` is the node. The
    entry is not reported together with those in ``unless``, which explain it, nor for runs of fewer than
    ``least_ranks`` ranks that compute.
    """

    id: Annotated[str, Field(pattern=_ID)]
    severity: Severity
    title: str
    patterns: Annotated[list[str], Field(min_length=1)]
    why: str
    fix: str
    role: Role = "cause"
    unless: list[Annotated[str, Field(pattern=_ID)]] = Field(default_factory=list)
    least_ranks: int = 1
    examples: Annotated[list[Example], Field(min_length=1)]

    def first_match(self, text: str) -> re.Match[str] | None:
        """Return the first match of any pattern in ``text``."""
        found = [match for pattern in self.patterns if (match := compiled(pattern).search(text))]
        return min(found, key=lambda match: match.start(), default=None)

    def finding(self, match: re.Match[str]) -> Finding:
        """Return the finding for a match, with control characters escaped and the fix quoted for the shell."""
        groups = {name: value for name, value in match.groupdict().items() if value}
        fix = _PLACEHOLDER.sub(lambda place: sh(visible(groups.get(place[1], place[1].upper()))), self.fix)
        where = visible(groups["host"]) if "host" in groups else None
        return Finding(self.id, self.severity, self.title, _line(match), self.why, fix, where)


@cache
def load_diagnoses() -> tuple[Diagnosis, ...]:
    """Return all diagnoses, sorted by id; raises ``InvalidInput`` if a file is invalid."""
    files = (file for file in _folder().glob("*.yaml") if file.name != _HARMLESS)
    known = [entry for file in files for entry in _read(file, TypeAdapter(list[Diagnosis]))]
    return tuple(sorted(known, key=lambda diagnosis: diagnosis.id))


@cache
def diagnosis_rules() -> Rules[str]:
    """Return a rule of ``hidl doctor`` for each diagnosis. The diagnosis's first example documents the rule."""
    rules: Rules[str] = Rules()
    for diagnosis in load_diagnoses():
        rules.rule(diagnosis.id, diagnosis.title, severity=diagnosis.severity, why=diagnosis.why)(_check(diagnosis))
    return rules


def _check(diagnosis: Diagnosis) -> Callable[[str], Iterator[Evidence]]:
    def matches(text: str) -> Iterator[Evidence]:
        match = diagnosis.first_match(text)
        if match is not None:
            finding = diagnosis.finding(match)
            yield Evidence(finding.seen, finding.fix, finding.where)

    example = next(matches(diagnosis.examples[0].text))
    matches.__doc__ = f"Found in the output of a job, for example: {example.seen}"
    return matches


@cache
def load_harmless() -> tuple[Harmless, ...]:
    """Return the lines that never indicate a cause; raises ``InvalidInput`` if the file is invalid."""
    return tuple(_read(_folder() / _HARMLESS, TypeAdapter(list[Harmless])))


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return the compiled pattern, using a cache."""
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
    """Return the line that contains the match (several lines are joined), clipped around it."""
    text = match.string
    begin = max(text.rfind("\n", 0, match.start()) + 1, match.start() - _MAX_LINE // 3)
    end = text.find("\n", match.end())
    lines = text[begin : len(text) if end < 0 else end].strip().replace("\n", " ")
    return clipped(visible(lines), _MAX_LINE)


# Likely causes of a failed run, based on its output and on its job's findings about nodes and ranks.


MAX_TEXT = 256 * 1024
"""Maximum number of characters to search, counted from the end of a text."""

_FURTHER = 3
_CAUSES, _FINDINGS = "causes", "findings"
"""Names of the run's documents with the likely causes and with the findings of the job itself."""


def find_causes(text: str) -> list[Finding]:
    """Find the known causes in ``text``, each only once, starting with the most likely one."""
    return [cause.finding for cause in search([text[-MAX_TEXT:].encode("utf-8", "replace")])]


def read_causes(run: Run) -> list[Finding]:
    """Return the likely causes of a run's failure, starting with the most likely, from ``causes.json`` or its logs.

    Errors come before warnings, and the job's own findings come before those from its stdout and stderr.
    """
    written = _read_findings(run, _CAUSES)
    return _causes_of(run) if written is None else written


def read_warnings(run: Run) -> list[Finding]:
    """Return the problems that the job found on its nodes and ranks, with errors first."""
    found = [finding for finding in _read_findings(run, _FINDINGS) or () if finding.severity in ("error", "warning")]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def write_causes(run: Run, proven: Sequence[Finding] = ()) -> None:
    """Write ``causes.json`` if it does not exist: the ``proven`` causes, then the likely ones.

    Does nothing if the directory is read-only.
    """
    if _read_findings(run, _CAUSES) is None:
        causes = [finding.to_json() for finding in (*proven, *_causes_of(run))]
        with suppress(OSError):
            run.write(_CAUSES, {"schema": "hidl.causes/1", "run": run.id, "findings": causes})


def format_causes(causes: Sequence[Finding]) -> str:
    """Format the first cause with its reason, and the titles of a few others. Warnings are called possible causes."""
    if not causes:
        return ""
    likely, *others = causes
    place = f" on {likely.where}" if likely.where and likely.where not in likely.seen else ""
    word = "likely" if likely.severity == "error" else "possible"
    lines = [f"{word} cause: {likely.title}{place} ({likely.rule})", f"  seen: {likely.seen}", f"  why: {likely.why}"]
    lines += [f"  fix: {likely.fix}"] if likely.severity != "error" else []
    lines += [f"also seen: {other.title} ({other.rule})" for other in others[:_FURTHER]]
    return "\n".join(lines)


def _causes_of(run: Run) -> list[Finding]:
    inside = read_warnings(run)
    known = {finding.rule for finding in inside}
    ranks = _most_ranks(run)
    known |= {each.id for each in load_diagnoses() if each.least_ranks > ranks}
    printed = find_causes("\n".join(_tail(log) for log in (run.stdout, run.stderr)))
    causes = [*inside, *(finding for finding in printed if finding.rule not in known)]
    return sorted(causes, key=lambda finding: SEVERITIES.index(finding.severity))


def _most_ranks(run: Run) -> float:
    """Return the number of ranks that compute in the largest step of a run; infinity if it is unknown."""
    with suppress(HidlError, KeyError, TypeError, ValueError):
        plan = run.document("plan") or {}
        workload = plan["workload"]
        if not workload["program"].get("once"):  # a batch script starts any number of ranks
            most: int = max(step["placement"]["ranks"] for step in plan["steps"])
            return most - int(workload.get("overhead_ranks", 0))
    return float("inf")


def _read_findings(run: Run, name: str) -> list[Finding] | None:
    """Return the findings in a document of the run, or None if it is missing or invalid."""
    try:
        document = run.document(name)
        return None if document is None else [Finding.from_json(one) for one in document["findings"]]
    except (HidlError, KeyError, TypeError):
        return None


def _tail(log: Path) -> str:
    """Return the last lines of a log, up to ``MAX_TEXT // 2`` bytes, or an empty string if it cannot be read."""
    try:
        return read_end(log, MAX_TEXT // 2).decode("utf-8", "replace")
    except OSError:
        return ""
