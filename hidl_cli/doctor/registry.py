"""All rules: the modules of ``hidl_cli.doctor.rules``, and the rules on compute nodes, ranks and output."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

from hidl_cli.doctor import rules
from hidl_cli.doctor.subject import Fix, Subject
from hidl_cli.errors import UsageError
from hidl_workloads.doctor.finding import Rule

#: Modules with ``RULES`` that are not applied on this host: inside jobs, to launches, and to a job's output.
_ELSEWHERE = (
    "hidl_workloads.doctor.nodes",
    "hidl_workloads.doctor.ranks",
    "hidl_cli.doctor.nodes.hosts",
    "hidl_cli.doctor.nodes.launches",
    "hidl_cli.doctor.output",
)


@cache
def load_subjects() -> tuple[Subject[Any], ...]:
    """The ``SUBJECT`` of every module of ``hidl_cli.doctor.rules``, sorted by module name."""
    names = sorted(module.name for module in pkgutil.iter_modules(rules.__path__))
    return tuple(import_module(f"{rules.__name__}.{name}").SUBJECT for name in names)


def all_rules() -> Iterator[Rule[Any]]:
    """Every rule of every module, sorted within a module; a rule's id may occur again for output."""
    for subject in load_subjects():
        yield from subject.rules
    for module in _ELSEWHERE:
        yield from import_module(module).RULES


def list_rules() -> list[Rule[Any]]:
    """Every rule once, sorted by id; of rules that share an id, the first of ``all_rules``."""
    known: dict[str, Rule[Any]] = {}
    for rule in all_rules():
        known.setdefault(rule.id, rule)
    return [known[id] for id in sorted(known)]


def find_rule(id: str) -> Rule[Any]:
    """The rule with that id, in upper or lower case. Raises ``UsageError`` if it is unknown."""
    rule = next((rule for rule in list_rules() if rule.id == id.upper()), None)
    if rule is None:
        raise UsageError(f"unknown rule {id!r}", hint="hidl doctor rules lists them")
    return rule


def fixes() -> dict[str, Fix]:
    """The fixes of all subjects, by rule id."""
    return {id: fix for subject in load_subjects() for id, fix in subject.fixes.items()}
