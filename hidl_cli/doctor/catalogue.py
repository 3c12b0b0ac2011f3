"""Which rules there are, and in which modules: nothing is imported before the first question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from hidl_workloads.doctor.finding import Rule


@dataclass(frozen=True)
class Subject:
    """A module of rules. ``before_runs``: it takes milliseconds, so ``hidl run`` asks it before it submits."""

    module: str
    before_runs: bool = False

    def load(self) -> ModuleType:
        """The module itself."""
        return import_module(self.module)


#: What is judged where hidl runs. Each has ``RULES`` and ``examine(context: Context) -> list[Finding]``.
HERE: tuple[Subject, ...] = ()

#: What is judged inside jobs, and by what they printed. Each has ``RULES``.
ELSEWHERE: tuple[Subject, ...] = ()


def rules() -> Iterator[Rule[Any]]:
    """Every rule, in the order of their ids; of those that several modules know by one id, the first."""
    known: dict[str, Rule[Any]] = {}
    for subject in (*HERE, *ELSEWHERE):
        for rule in subject.load().RULES:
            known.setdefault(rule.id, rule)
    yield from (known[id] for id in sorted(known))
