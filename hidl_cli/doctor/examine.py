"""Ask every subject's rules, side by side."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hidl_cli.doctor.asking import Once
from hidl_cli.doctor.catalogue import HERE, Subject
from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes.in_use import directories_of
from hidl_cli.runs.plan import Plan
from hidl_cli.site.probes.host import Host, ThisHost
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_workloads.doctor.finding import Finding, worst_first

_AT_ONCE = 16


@dataclass(frozen=True)
class Examined:
    """What is wrong, the worst first, and what could not be learnt, in sentences."""

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...] = ()

    def __add__(self, other: Examined) -> Examined:
        """What both found, each thing once."""
        findings = worst_first(dict.fromkeys((*self.findings, *other.findings)))
        return Examined(tuple(findings), tuple(dict.fromkeys((*self.unknown, *other.unknown))))

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What will fail, or tell lies."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


def examine(contexts: Sequence[Context], subjects: Sequence[Subject] = HERE) -> Examined:
    """Let the rules of all ``subjects`` judge every context, each in a thread of its own: some ask slow programs.

    A finding that several contexts share is told once. The contexts share one host.
    """
    modules = [subject.load() for subject in subjects]
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
        asked = [threads.submit(module.examine, context) for context in contexts for module in modules]
        findings = {finding: None for one in asked for finding in one.result()}
    unknown = [sentence for context in contexts for sentence in (*_unknown(context), *context.host.failures)]
    return Examined(tuple(worst_first(findings)), tuple(dict.fromkeys(unknown)))


def _unknown(context: Context) -> Iterator[str]:
    """What these rules cannot judge, and why."""
    site, plan = context.site, context.plan
    if not context.is_here and site.match is None:
        yield f"whether this host is part of site {site.name} is not known: its file has no `match`"
    if context.stack is None:
        yield f"no stack is installed for site {site.name} here, so nothing is known of MPI: hidl install STACK"
    elif context.installation is None and plan is None:
        yield f"stack {context.stack} is not in use for site {site.name} here, so nothing is known of its MPI"


def contexts(
    site: Site, *, root: Path, stack: str | None = None, nodes: int | None = None, host: Host | None = None
) -> list[Context]:
    """One for the ``stack``, or one for each stack of which anything is installed below ``root`` and for the one that
    is activated; without any of these, one of the host and the site alone."""
    shared = Once(host or ThisHost())
    directories = [root / site.name / stack] if stack else directories_of(root, site.name)
    found = [(directory.name, installation.current(directory)) for directory in directories]
    active = Path(shared.environment.get("VIRTUAL_ENV") or os.devnull)
    if stack is None and active not in [prefix for _, prefix in found] and installation.at(active):
        found.append((active.parent.name, active))
    return [
        Context(shared, site, installation.at(prefix) if prefix else None, name, nodes=nodes, root=root)
        for name, prefix in found
    ] or [Context(shared, site, nodes=nodes, root=root)]


def before_runs(plans: Iterable[Plan], site: Site) -> Examined:
    """What is cheap to know before the jobs of ``plans`` are submitted."""
    host = Once(ThisHost())
    asked = [Context(host, site, installation.at(Path(plan.prefix)), plan.stack, plan) for plan in plans]
    return examine(asked, [subject for subject in HERE if subject.before_runs])
