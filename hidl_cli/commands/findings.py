"""Show findings, and stop at errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hidl_cli.doctor.examine import Examined
    from hidl_cli.plan.launch_plan import Plan
    from hidl_cli.site.schema import Site
    from hidl_workloads.doctor.finding import Finding

_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def show(findings: Iterable[Finding], *, on_stderr: bool = False) -> None:
    """Print findings grouped by rule: where, what was found, the fix, and why it matters."""
    from itertools import groupby

    from rich.text import Text

    from hidl_cli.commands.render import printable, stderr, stdout

    console = stderr() if on_stderr else stdout()

    def line(label: str, text: str) -> None:
        console.print(Text.assemble((f"  {label}: ", "bold"), printable(text)), soft_wrap=True)

    for (severity, rule), group in groupby(findings, key=lambda finding: (finding.severity, finding.rule)):
        alike = list(group)
        console.print(Text.assemble((f"{severity} {rule}", _STYLES[severity]), " ", alike[0].title), soft_wrap=True)
        for finding in alike:
            if finding.where and finding.where not in finding.seen:
                line("where", finding.where)
            line("seen", finding.seen)
            line("fix", finding.fix)
        line("why", alike[0].why)


def summary(findings: Iterable[Finding]) -> str:
    """The number of findings of each severity: ``1 error, 2 warnings``."""
    from hidl_workloads.doctor.finding import SEVERITIES

    severities = [finding.severity for finding in findings]
    counts = [(severities.count(severity), severity) for severity in SEVERITIES]
    words = [f"{count} {name}{'s' if count > 1 and name != 'info' else ''}" for count, name in counts if count]
    return ", ".join(words) or "no problems found"


def check_before_run(plan: Plan, site: Site, *, hypothetical: bool) -> None:
    """Apply the cheap rules, and stop at errors as ``stop_at_errors`` does."""
    from hidl_cli.doctor.examine import before_runs

    stop_at_errors(before_runs([plan], site), hypothetical=hypothetical)


def stop_at_errors(examined: Examined, *, hypothetical: bool = False) -> None:
    """Show errors and warnings on stderr. Raises ``MissingPrecondition`` at errors, unless ``hypothetical``."""
    from hidl_cli.api.launching import refusal

    show([finding for finding in examined.findings if finding.severity != "info"], on_stderr=True)
    if examined.errors and not hypothetical:
        raise refusal(examined)
