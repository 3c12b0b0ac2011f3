"""Rules on recorded facts: what each must find, and what it must leave alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hidl_workloads.doctor.finding import Rules

#: A rule's id, what the case is, the facts, and the severity that is to be found; None: nothing is.
Case = tuple[str, str, Any, str | None]


def severity(rules: Rules[Any], id: str, facts: Any) -> str | None:
    """The severity of what the rule of that id finds in the facts, None where it finds nothing; one finding at most."""
    (rule,) = (rule for rule in rules if rule.id == id)
    found = rule.findings(facts)
    assert len(found) < 2, found
    assert all(one.seen and one.fix for one in found)
    return found[0].severity if found else None


def named(case: Case) -> str:
    """The name of a case."""
    return f"{case[0]} {case[1]}"


def has_both_ways(rules: Rules[Any], cases: Sequence[Case]) -> bool:
    """Has every rule a case where it finds something, and one where it does not?"""
    wanted = {(rule.id, found) for rule in rules for found in (True, False)}
    return wanted == {(id, severity is not None) for id, _, _, severity in cases}
