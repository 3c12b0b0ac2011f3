"""Ask every subject's rules about one context, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hidl_cli.doctor.catalogue import HERE, Subject
from hidl_cli.doctor.context import Context
from hidl_workloads.doctor.finding import Finding, worst_first


@dataclass(frozen=True)
class Examined:
    """What is wrong, the worst first, and what could not be learnt, in sentences."""

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]


def examine(context: Context, subjects: Sequence[Subject] = HERE) -> Examined:
    """Let the rules of all ``subjects`` judge, each in a thread of its own, as some ask slow programs."""
    with ThreadPoolExecutor(max_workers=max(1, len(subjects))) as threads:
        asked = [threads.submit(subject.load().examine, context) for subject in subjects]
        findings = [finding for one in asked for finding in one.result()]
    return Examined(tuple(worst_first(findings)), tuple(dict.fromkeys(context.host.failures)))


def examine_before_run(context: Context) -> Examined:
    """What is cheap to know before a job is submitted."""
    return examine(context, [subject for subject in HERE if subject.before_runs])
