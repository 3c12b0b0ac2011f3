"""A finding, and the rules that yield findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

Severity = Literal["error", "warning", "info"]
"""error: what is asked for will fail, or tell lies; warning: it works, slowly or by luck; info: good to know."""

SEVERITIES: tuple[Severity, ...] = get_args(Severity)

_ID = re.compile(r"HD[0-9]{3}")

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Seen:
    """What a rule saw, and the command or line that mends it. ``where``: the host or file that it is about.

    ``severity``: where this case is better or worse than the rule's usual one.
    """

    seen: str
    mend: str
    where: str | None = None
    severity: Severity | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, by the rule whose id is ``rule``."""

    rule: str
    severity: Severity
    title: str
    seen: str
    why: str
    mend: str
    where: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The finding as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Finding:
        """What ``to_json`` gave; raises ``TypeError`` where a field is missing or unknown."""
        return cls(**document)


@dataclass(frozen=True)
class Rule(Generic[Facts]):
    """A rule: its stable id, what it is called, how bad it is, why it matters, and how it judges facts."""

    id: str
    title: str
    severity: Severity
    why: str
    check: Callable[[Facts], Iterable[Seen]]

    def findings(self, facts: Facts) -> list[Finding]:
        """What is wrong by this rule."""
        return [
            Finding(self.id, seen.severity or self.severity, self.title, seen.seen, self.why, seen.mend, seen.where)
            for seen in self.check(facts)
        ]


class Rules(Generic[Facts]):
    """The rules over one kind of facts, in the order of their ids.

    ::

        RULES: Rules[Node] = Rules()

        @RULES.rule("HD041", "/dev/shm is too small", severity="error", why="...")
        def little_shared_memory(node: Node) -> Iterator[Seen]:
            ...
    """

    def __init__(self) -> None:
        self._rules: dict[str, Rule[Facts]] = {}

    def rule(
        self, id: str, title: str, *, severity: Severity, why: str
    ) -> Callable[[Callable[[Facts], Iterable[Seen]]], Callable[[Facts], Iterable[Seen]]]:
        """Register the decorated function. Ids are never used again for something else."""
        if not _ID.fullmatch(id) or id in self._rules:
            raise ValueError(f"{id!r} is no id of a new rule")

        def register(check: Callable[[Facts], Iterable[Seen]]) -> Callable[[Facts], Iterable[Seen]]:
            self._rules[id] = Rule(id, title, severity, why, check)
            return check

        return register

    def __iter__(self) -> Iterator[Rule[Facts]]:
        return iter(sorted(self._rules.values(), key=lambda rule: rule.id))

    def findings(self, facts: Facts) -> list[Finding]:
        """What is wrong by any of these rules; the worst first."""
        return worst_first(finding for rule in self for finding in rule.findings(facts))


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, then warnings, then what is good to know; each by id."""
    return sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), finding.rule, finding.where or ""))
