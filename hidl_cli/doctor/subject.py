"""A subject of the doctor: a probe that collects facts, the rules on them, and fixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hidl_cli.doctor.context import Context
from hidl_workloads.doctor.finding import Finding, Rules

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Fix:
    """What ``hidl doctor --fix`` does for one rule.

    ``does`` describes it, ``undo`` how to revert it; ``apply(finding, say)`` returns what it did, None if nothing.
    A fix must be safe and reversible, and touch only hidl's own files.
    """

    does: str
    undo: str
    apply: Callable[[Finding, Callable[[str], None]], str | None]


@dataclass(frozen=True)
class Subject(Generic[Facts]):
    """``probe`` returns facts, None if it cannot know any; ``rules`` are pure functions over them.

    ``before_runs``: the probe takes milliseconds, so ``hidl run`` examines it before it submits. ``fixes``: by rule id.
    """

    probe: Callable[[Context], Facts | None]
    rules: Rules[Facts]
    before_runs: bool = False
    fixes: Mapping[str, Fix] = field(default_factory=dict)

    def examine(self, context: Context) -> list[Finding]:
        """Collect the facts and apply the rules."""
        facts = self.probe(context)
        return [] if facts is None else self.rules.findings(facts)
