"""Subjects that the doctor examines, examination contexts, and the registry of rules and fixes."""

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
    """A fix that ``hidl doctor --fix`` applies to a rule's findings.

    A fix must be safe and reversible, and may only change hidl's files.

    Attributes:
        does: Description of the fix.
        undo: Description of how to revert it.
        apply: Function that is called with a finding and a callback for messages. The function returns a description of
            the change, or None if nothing was changed.
    """

    does: str
    undo: str
    apply: Callable[[Finding, Callable[[str], None]], str | None]


@dataclass(frozen=True)
class Subject(Generic[Facts]):
    """A subject that the doctor examines.

    Attributes:
        probe: Function that collects facts. It returns None if nothing can be determined.
        rules: Rules, which are pure functions of the facts.
        before_runs: Whether ``hidl run`` examines the subject before it submits a job. In this case, the probe should
            take only milliseconds.
        fixes: Fixes by rule id.
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
    """The input for probes.

    Attributes:
        host: This machine, or a recorded one; its ``failures`` lists commands that failed.
        installation: The installation, or None if the stack is not installed or no stack is given.
        stack: Name of the stack.
        plan: The run that is about to be submitted, or None for ``hidl doctor``.
        nodes: Number of compute nodes to examine, or None to examine none.
        roots: Installation roots (default: the user's and the site's).
        deep: Whether to read every file in the installation.
        saved: Scheduler description from saved output, used instead of the host's scheduler.
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
        """True if this host is part of the site, according to the site's ``match`` or else the scheduler's command."""
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
        """Number of GPUs per node (0 if the plan only uses CPUs, None if unknown)."""
        if self.plan is not None and self.plan.device == "cpu":
            return 0
        return self.site.node_type(self.plan.partition if self.plan else None).gpus

    @property
    def is_active(self) -> bool:
        """True if the stack is activated in the shell that started hidl."""
        active = self.host.environment.get("VIRTUAL_ENV")
        return self.installation is not None and active == str(self.installation.prefix)


def stack_directories(roots: Iterable[Path], site: str, stack: str | None = None) -> list[Path]:
    """Return the directories of a site's stacks (or of one stack) that contain an installation, complete or not."""
    parents = [root / site for root in roots]
    found = [directory for parent in parents if parent.is_dir() for directory in sorted(parent.iterdir())]
    return [each for each in found if stack in (None, each.name) and installations.prefixes(each)]


# The rule registry: the rules in ``hidl_cli.doctor.rules``, and those for compute nodes, ranks and job output.


#: Rules that are applied to nodes, launches and job output rather than to this host (``module:attribute``).
_OTHER_RULES = (
    "hidl_workloads.doctor.nodes:RULES",
    "hidl_workloads.doctor.data:RULES",
    "hidl_workloads.doctor.ranks:RULES",
    "hidl_cli.doctor.nodes:RULES",
    "hidl_cli.doctor.nodes:LAUNCH_RULES",
)


@cache
def load_subjects(*, before_runs: bool = False) -> tuple[Subject[Any], ...]:
    """Return the ``SUBJECTS`` of every module of ``hidl_cli.doctor.rules``, sorted by module name.

    ``before_runs`` selects those that ``hidl run`` examines before it submits a job.
    """
    skipped = rules.NOT_BEFORE_RUNS if before_runs else frozenset()
    names = sorted(module.name for module in pkgutil.iter_modules(rules.__path__) if module.name not in skipped)
    modules = [import_module(f"{rules.__name__}.{name}") for name in names]
    return tuple(subject for module in modules for subject in module.SUBJECTS if subject.before_runs or not before_runs)


def all_rules() -> Iterator[Rule[Any]]:
    """Yield every module's rules, sorted by id within a module.

    Several rules for job output may have the same id.
    """
    from hidl_cli.diagnoses import diagnosis_rules  # reads the catalogue, which is not needed for runs

    for subject in load_subjects():
        yield from subject.rules
    for reference in _OTHER_RULES:
        module, _, attribute = reference.partition(":")
        yield from getattr(import_module(module), attribute)
    yield from diagnosis_rules()


def list_rules() -> list[Rule[Any]]:
    """Return all rules sorted by id. If several rules share an id, only the first one is included."""
    known: dict[str, Rule[Any]] = {}
    for rule in all_rules():
        known.setdefault(rule.id, rule)
    return [known[id] for id in sorted(known)]


def find_rule(id: str) -> Rule[Any]:
    """Return the rule with this id, ignoring case.

    Raises:
        UsageError: If the rule is unknown.
    """
    rule = next((rule for rule in list_rules() if rule.id == id.upper()), None)
    if rule is None:
        raise UsageError(f"unknown rule {id!r}", hint="list all rules with: hidl doctor rules")
    return rule


def fixes() -> dict[str, Fix]:
    """Return the fixes for all subjects, by rule id."""
    return {id: fix for subject in load_subjects() for id, fix in subject.fixes.items()}


def fix(findings: Iterable[Finding], say: Callable[[str], None]) -> Iterator[tuple[Finding, str]]:
    """Apply the available fixes, and yield each fixed finding with a description of the change."""
    known = fixes()
    for finding in findings:
        if finding.rule in known and (done := known[finding.rule].apply(finding, say)):
            yield finding, done


_SECONDS = 5.0  # time limit per command, so that a hanging file server does not block the doctor


@dataclass(frozen=True)
class CachedHost(HostBehind):
    """A host that runs each command only once and caches its output, for probes that run in parallel."""

    _outputs: dict[tuple[str, ...], Future[str | None]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def ask(self, *command: str, seconds: float = _SECONDS, stderr: bool = False) -> str | None:
        key = (*command, "2>&1" if stderr else "")
        with self._lock:
            is_cached = key in self._outputs
            output = self._outputs.setdefault(key, Future())
        if not is_cached:
            try:
                output.set_result(super().ask(*command, seconds=seconds, stderr=stderr))
            except BaseException as error:
                output.set_exception(error)
                raise
        return output.result()
