"""What is examined: a host, a site, a stack, a plan."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

from hidl_cli import batch_systems
from hidl_cli.doctor import rules
from hidl_cli.errors import UsageError
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.site.detect import conditions_of
from hidl_cli.site.probes.facts import SchedulerFacts
from hidl_cli.site.probes.host import Host, HostBehind
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation as installations
from hidl_cli.stack.installation import Installation
from hidl_workloads.doctor.finding import Finding, Rule, Rules

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


@dataclass(frozen=True)
class Context:
    """The input of probes.

    ``host``: this machine, or a recorded one; its ``failures`` list commands that failed. ``stack``: its name;
    ``installation``: None if it is not installed, or no stack is named. ``plan``: the run about to be submitted, None
    for ``hidl doctor``. ``nodes``: number of compute nodes to examine, None for none. ``roots``: directories of
    installations, none of them: the user's and the site's. ``deep``: read every file of the installation.
    ``saved``: the site's scheduler as outputs describe it that somebody saved, instead of the host's.
    """

    host: Host
    site: Site
    installation: Installation | None = None
    stack: str | None = None
    plan: Plan | None = None
    nodes: int | None = None
    roots: tuple[Path, ...] = ()
    deep: bool = False
    saved: SchedulerFacts | None = None

    @cached_property
    def is_here(self) -> bool:
        """Whether this host is part of the site: by the site's ``match``, else by its scheduler's command."""
        if self.saved is not None:
            return True
        if conditions := conditions_of(self.site, self.host):
            return all(condition.holds for condition in conditions)
        if self.site.scheduler == "local":
            return True
        system = batch_systems.system(self.site.scheduler)
        return system is not None and self.host.which(system.submit) is not None

    @property
    def gpus(self) -> int | None:
        """GPUs of each node; 0 if the plan computes on processors, None if unknown."""
        if self.plan is not None and self.plan.device == "cpu":
            return 0
        return self.site.node_type(self.plan.partition if self.plan else None).gpus

    @property
    def is_active(self) -> bool:
        """Whether the stack is activated in the shell that started hidl."""
        place = self.host.environment.get("VIRTUAL_ENV")
        return self.installation is not None and place == str(self.installation.prefix)


def stack_directories(roots: Iterable[Path], site: str, stack: str | None = None) -> list[Path]:
    """The directories below ``roots`` of the site's stacks, or of one, that have any installation, complete or not."""
    places = [root / site for root in roots]
    found = [directory for place in places if place.is_dir() for directory in sorted(place.iterdir())]
    return [each for each in found if stack in (None, each.name) and installations.prefixes(each)]


# All rules: the modules of ``hidl_cli.doctor.rules``, and the rules on compute nodes, ranks and output.


#: Rules that are not applied on this host: inside jobs, to launches, and to a job's output (``module:attribute``).
_ELSEWHERE = (
    "hidl_workloads.doctor.nodes:RULES",
    "hidl_workloads.doctor.ranks:RULES",
    "hidl_cli.doctor.nodes:RULES",
    "hidl_cli.doctor.nodes:LAUNCH_RULES",
    "hidl_cli.doctor.examine:RULES",
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
    for place in _ELSEWHERE:
        module, _, attribute = place.partition(":")
        yield from getattr(import_module(module), attribute)


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


# ``hidl doctor --fix``: apply the fixes of findings.


def fix(findings: Iterable[Finding], say: Callable[[str], None]) -> Iterator[tuple[Finding, str]]:
    """Fix what can be fixed. Yields each fixed finding, and what was done."""
    known = fixes()
    for finding in findings:
        if finding.rule in known and (done := known[finding.rule].apply(finding, say)):
            yield finding, done


# A host that runs each command once, for probes that run side by side.


_SECONDS = 5.0  # per command: a hanging file server must not stop the doctor


@dataclass(frozen=True)
class CachedHost(HostBehind):
    """Keeps the output of every command. Threads that ask for the same command share one run."""

    _answers: dict[tuple[str, ...], Future[str | None]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def ask(self, *command: str, seconds: float = _SECONDS, stderr: bool = False) -> str | None:
        """The output of a command; None if it fails or is missing."""
        question = (*command, "2>&1" if stderr else "")
        with self._lock:
            known = self._answers.get(question)
            answer = self._answers.setdefault(question, Future())
        if known is None:
            try:
                answer.set_result(super().ask(*command, seconds=seconds, stderr=stderr))
            except BaseException as error:
                answer.set_exception(error)
                raise
        return answer.result()
