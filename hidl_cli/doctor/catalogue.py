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
HERE: tuple[Subject, ...] = (
    Subject("hidl_cli.doctor.rules.libraries", before_runs=True),
    Subject("hidl_cli.doctor.rules.tuning", before_runs=True),
    Subject("hidl_cli.doctor.rules.gpus", before_runs=True),
    Subject("hidl_cli.doctor.rules.python", before_runs=True),
    Subject("hidl_cli.doctor.rules.files", before_runs=True),
    Subject("hidl_cli.doctor.rules.network", before_runs=True),
    Subject("hidl_cli.doctor.rules.in_use"),
    Subject("hidl_cli.doctor.rules.this_node"),
    Subject("hidl_cli.doctor.rules.stack", before_runs=True),
    Subject("hidl_cli.doctor.rules.site"),  # before runs the scheduler itself says what it refuses
)

#: What is judged inside jobs, and by what they printed. Each has ``RULES``.
ELSEWHERE: tuple[Subject, ...] = (
    Subject("hidl_workloads.doctor.nodes"),
    Subject("hidl_workloads.doctor.ranks"),
    Subject("hidl_cli.doctor.rules.launches"),
    Subject("hidl_cli.doctor.seen.rules"),
)


def rules() -> Iterator[Rule[Any]]:
    """Every rule, in the order of their ids; of those that several modules know by one id, the first."""
    known: dict[str, Rule[Any]] = {}
    for subject in (*HERE, *ELSEWHERE):
        for rule in subject.load().RULES:
            known.setdefault(rule.id, rule)
    yield from (known[id] for id in sorted(known))


def find(word: str) -> Rule[Any]:
    """The rule of that id; ``UsageError`` where there is none."""
    from hidl_cli.errors import UsageError

    known = {rule.id: rule for rule in rules()}
    if word.upper() not in known:
        raise UsageError(f"there is no rule {word!r}", hint="hidl doctor rules lists them")
    return known[word.upper()]
