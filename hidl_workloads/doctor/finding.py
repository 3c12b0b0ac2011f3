"""Findings, and rules that yield findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

Severity = Literal["error", "warning", "info"]
"""error: runs fail or give wrong results; warning: runs may fail or be slow; info: for information only."""

SEVERITIES: tuple[Severity, ...] = get_args(Severity)

_ID = re.compile(r"HD[0-9]{3}")

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Evidence:
    """The evidence for a finding.

    Attributes:
        seen: Description of the problem.
        fix: Description of the fix.
        where: Host or file with the problem.
        severity: Severity that overrides that of the rule.
    """

    seen: str
    fix: str
    where: str | None = None
    severity: Severity | None = None


@dataclass(frozen=True)
class Finding:
    """A problem that was found by the rule with the id ``rule``."""

    rule: str
    severity: Severity
    title: str
    seen: str
    why: str
    fix: str
    where: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serializable dictionary. The key of ``fix`` is ``mend``, as in earlier versions."""
        return {"mend" if name == "fix" else name: value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Finding:
        """Parse a document of ``to_json``.

        Raises:
            TypeError: If a field is missing or unknown.
        """
        return cls(**{"fix" if name == "mend" else name: value for name, value in {**document}.items()})


@dataclass(frozen=True)
class Rule(Generic[Facts]):
    """A rule with its stable id, title, severity, rationale and check."""

    id: str
    title: str
    severity: Severity
    why: str
    check: Callable[[Facts], Iterable[Evidence]]

    def findings(self, facts: Facts) -> list[Finding]:
        """Apply the rule to facts."""
        return [
            Finding(self.id, seen.severity or self.severity, self.title, seen.seen, self.why, seen.fix, seen.where)
            for seen in self.check(facts)
        ]


class Rules(Generic[Facts]):
    """A collection of rules for one type of facts, sorted by id.

    ::

        RULES: Rules[Node] = Rules()

        @RULES.rule("HD041", "/dev/shm is too small", severity="error", why="...")
        def little_shared_memory(node: Node) -> Iterator[Evidence]:
            ...
    """

    def __init__(self) -> None:
        self._rules: dict[str, Rule[Facts]] = {}

    def rule(
        self, id: str, title: str, *, severity: Severity, why: str
    ) -> Callable[[Callable[[Facts], Iterable[Evidence]]], Callable[[Facts], Iterable[Evidence]]]:
        """Register the decorated function as a rule. Ids must never be reused."""
        if not _ID.fullmatch(id) or id in self._rules:
            raise ValueError(f"invalid or duplicate rule id {id!r}")

        def register(check: Callable[[Facts], Iterable[Evidence]]) -> Callable[[Facts], Iterable[Evidence]]:
            self._rules[id] = Rule(id, title, severity, why, check)
            return check

        return register

    def __iter__(self) -> Iterator[Rule[Facts]]:
        return iter(sorted(self._rules.values(), key=lambda rule: rule.id))

    def findings(self, facts: Facts) -> list[Finding]:
        """Apply all rules, and return their findings sorted by severity."""
        return worst_first(finding for rule in self for finding in rule.findings(facts))


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity, rule id and location."""
    return sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), finding.rule, finding.where or ""))
