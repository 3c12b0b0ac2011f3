"""Why hidl takes this machine for the site that it does, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hidl_cli.site.detect import Detection

FALLBACK = "local"  # the site where none matches


def explained(site: str | None, outcomes: Iterable[Detection], schedulers: Mapping[str, str]) -> str:
    """What was decided, on what ground, and what would be used otherwise; ``schedulers``: those whose programs are
    here, each with one."""
    if site is None:
        return _nothing_matched(schedulers)
    (outcome,) = (one for one in outcomes if one.site == site)
    others = [one.site for one in outcomes if one.matched and one.site != site]
    count = len(outcome.conditions)
    ground = "its only condition holds" if count == 1 else f"{count} of {count} conditions hold"
    lines = [f"this is {site}: {ground} ({'; '.join(outcome.reasons)})"]
    if others:
        lines.append(f"{', '.join(others)} matched too, by fewer conditions")
    if count == 1:
        lines.append("one condition alone is weak ground: a further one under `match` makes it sure")
    return "\n".join(
        [*lines, f"without this match it would be `{others[0] if others else FALLBACK}`; --site overrides it"]
    )


def as_document(outcome: Detection) -> dict[str, Any]:
    """One site's outcome for programs: what each of its conditions was held against."""
    conditions = [
        {
            "subject": condition.subject,
            "pattern": condition.pattern,
            "value": condition.value,
            "holds": condition.holds,
        }
        for condition in outcome.conditions
    ]
    return {
        "site": outcome.site,
        "matched": outcome.matched,
        "reasons": list(outcome.reasons),
        "conditions": conditions,
    }


def _nothing_matched(schedulers: Mapping[str, str]) -> str:
    said = f"no site matches: hidl uses `{FALLBACK}`, the machine you sit at"
    if not schedulers:
        return said
    found = ", ".join(f"{name} ({program})" for name, program in schedulers.items())
    return f"{said}\nbut a scheduler is here: {found}; `hidl site new` drafts a site file for this cluster"
