"""Where a run's numbers come from, and how that differs between two runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.hostlist import fold
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.redaction import redact_document


@dataclass(frozen=True)
class Provenance:
    """What decides a run's numbers: its plan, its hosts, and the versions of its packages."""

    plan: Plan
    hosts: tuple[str, ...]
    packages: Mapping[str, str]


def differences(before: Provenance, after: Provenance) -> tuple[str, ...]:
    """Describe how the provenance of two runs of one kind differs; empty if it does not."""
    old, new = before.plan, after.plan
    found = [
        f"{what}: {was or 'none'} → {now or 'none'}"
        for what, was, now in (
            ("site", old.site, new.site),
            ("partition", old.partition, new.partition),
            ("launcher", old.launcher, new.launcher),
            ("lock", old.lock[:12], new.lock[:12]),
            ("MPI", format_mpi(old), format_mpi(new)),
            ("hosts", fold_or_join(before.hosts), fold_or_join(after.hosts)),
            ("modules", " ".join(old.modules), " ".join(new.modules)),
            ("hidl", old.hidl, new.hidl),
        )
        if was != now
    ]
    tuning = [redact_document({setting.name: setting.value for setting in plan.tuning}) for plan in (old, new)]
    return (*found, *_changed("", *tuning), *_changed("version of ", before.packages, after.packages))


def fold_or_join(hosts: tuple[str, ...]) -> str:
    """Fold the hosts into one expression; joined with commas if one of them is not a host name."""
    try:
        return fold(hosts)
    except InvalidInput:
        return ",".join(hosts)


def format_mpi(plan: Plan) -> str:
    """Format the MPI library: family, version and whether it is the stack's or the site's."""
    version = f" {plan.mpi.version}" if plan.mpi.version else ""
    whose = "of the stack" if plan.mpi_of_the_stack else f"{plan.mpi.name} of the site"
    return f"{plan.mpi.family}{version} ({whose})"


def _changed(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [f"{what}{name}: {before.get(name, 'not set')} → {after.get(name, 'not set')}" for name in names]
