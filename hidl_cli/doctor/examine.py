"""Examine all subjects in parallel."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hidl_cli.doctor.cached_host import CachedHost
from hidl_cli.doctor.context import Context, stack_directories
from hidl_cli.doctor.registry import load_subjects
from hidl_cli.doctor.subject import Subject
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.site.probes.facts import Batch
from hidl_cli.site.probes.host import Host, ThisHost
from hidl_cli.site.schema import Site
from hidl_cli.stack import installation
from hidl_workloads.doctor.finding import Finding, worst_first

_AT_ONCE = 16


@dataclass(frozen=True)
class Examined:
    """Findings, worst first, and what could not be examined."""

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...] = ()

    def __add__(self, other: Examined) -> Examined:
        """The union of both."""
        findings = worst_first(dict.fromkeys((*self.findings, *other.findings)))
        return Examined(tuple(findings), tuple(dict.fromkeys((*self.unknown, *other.unknown))))

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings of severity error."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


def examine(contexts: Sequence[Context], subjects: Sequence[Subject[Any]] | None = None) -> Examined:
    """Examine every context for all ``subjects`` (default: every one), in threads: some run slow programs.

    A finding that several contexts share is reported once. The contexts share one host.
    """
    chosen = load_subjects() if subjects is None else subjects
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
        asked = [threads.submit(subject.examine, context) for context in contexts for subject in chosen]
        findings = {finding: None for one in asked for finding in one.result()}
    unknown = [sentence for context in contexts for sentence in (*_unknown(context), *context.host.failures)]
    return Examined(tuple(worst_first(findings)), tuple(dict.fromkeys(unknown)))


def _unknown(context: Context) -> Iterator[str]:
    """What these rules cannot examine, and why."""
    site, plan = context.site, context.plan
    if not context.is_here:
        yield f"this host is not part of site {site.name}: only the site file was checked"
    if context.stack is None:
        yield f"no stack is installed for site {site.name}, so MPI was not checked: hidl install STACK"
    elif context.installation is None and plan is None:
        yield f"stack {context.stack} is not in use for site {site.name}, so its MPI was not checked"


def contexts(
    site: Site,
    *,
    roots: Sequence[Path],
    stack: str | None = None,
    nodes: int | None = None,
    host: Host | None = None,
    deep: bool = False,
    saved: Batch | None = None,
) -> list[Context]:
    """One context for each installation in use of ``stack``, or of any stack below ``roots`` and the activated one;
    without any, one of the host and the site."""
    shared = CachedHost(host or ThisHost())
    directories = stack_directories(roots, site.name, stack) or ([roots[-1] / site.name / stack] if stack else [])
    found = [(directory, installation.current(directory)) for directory in directories]
    active = Path(shared.environment.get("VIRTUAL_ENV") or os.devnull)
    if stack is None and active not in [prefix for _, prefix in found] and installation.at(active):
        found.append((active.parent, active))
    return [
        Context(
            shared,
            site,
            installation.at(prefix) if prefix else None,
            directory.name,
            nodes=nodes,
            roots=(directory.parents[1],),
            deep=deep,
        )
        for directory, prefix in found
    ] or [Context(shared, site, nodes=nodes, roots=tuple(roots), saved=saved)]


def before_runs(plans: Iterable[Plan], site: Site) -> Examined:
    """Apply the cheap rules before the jobs of ``plans`` are submitted."""
    host = CachedHost(ThisHost())
    asked = [Context(host, site, installation.at(Path(plan.prefix)), plan.stack, plan) for plan in plans]
    return examine(asked, [subject for subject in load_subjects() if subject.before_runs])
