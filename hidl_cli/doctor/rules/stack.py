"""Rules: what a stack holds, and whether its installation is whole."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from hidl_cli.doctor import advisories
from hidl_cli.doctor.advisories import Advisory
from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes.stack import Held, probe
from hidl_workloads.doctor.finding import Finding, Rules, Seen

RULES: Rules[Held] = Rules()

_SHOWN = 4


def examine(context: Context) -> list[Finding]:
    """What is wrong with the stack."""
    return RULES.findings(probe(context))


@RULES.rule(
    "HD080",
    "Keras 3 with an unpatched Horovod",
    severity="error",
    why="Horovod 0.28.1 overrides methods that Keras 3 never calls: model.fit runs, ends with status 0 and never "
    "averages a gradient, so each rank trains a model of its own.",
)
def unpatched_horovod(facts: Held) -> Iterator[Seen]:
    """Both are there, and what hidl's patches bring is not."""
    keras, horovod = facts.versions.get("keras"), facts.versions.get("horovod")
    if facts.horovod_knows_keras_3 is False and keras is not None and _major(keras) >= 3:
        which = f"Horovod {horovod}" if horovod else "Horovod"
        yield Seen(
            f"{facts.source} holds Keras {keras}, and a {which} without the patches for it",
            "hidl install horovod, whose Horovod is patched and verified by equal weights; or keras<3 in the recipe",
            where=facts.source,
        )


@RULES.rule(
    "HD081",
    "A package has published vulnerabilities",
    severity="warning",
    why="Whoever can hand it files, or reach its port, can do what the advisory says. What hidl ships knows the newest "
    "advisories of its own stacks' packages, and no others.",
)
def vulnerable(facts: Held) -> Iterator[Seen]:
    """Where a newer version mends it; where none does, it is good to know. Runs are not stopped by it each time."""
    if facts.about_to_run:
        return
    for package, version, found in advisories.affecting(facts.versions):
        fixes = [each.fixed for each in found if each.fixed is not None]
        told = "; ".join(f"{each.id}: {each.text}" for each in found[:_SHOWN])
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        yield Seen(
            f"{package} {version}: {told}{more} ({found[0].url})",
            _update(package, max(fixes, key=Version), facts) if fixes else _live_with(found),
            where=facts.source,
            severity=None if fixes else "info",
        )


def _update(package: str, fixed: str, facts: Held) -> str:
    again = f"hidl stack lock {facts.stack} makes a new lock, then: {facts.again}" if facts.again else "make a new lock"
    return f"{package}>={fixed}: {again}"


def _live_with(found: list[Advisory]) -> str:
    return "no version mends it; " + "; ".join(each.mend for each in found if each.mend)


@RULES.rule(
    "HD082",
    "The installation is damaged, or of another hidl",
    severity="error",
    why="hidl runs nothing on it: programs inside of jobs and those that start them must be of one kind.",
)
def not_whole(facts: Held) -> Iterator[Seen]:
    """One finding for all that is wrong with it."""
    if facts.faults:
        mend = f"{facts.again}; the lock stays the same" if facts.again else "install the stack again"
        yield Seen(f"{facts.source}: {'; '.join(facts.faults)}", mend, where=facts.source)


def _major(version: str) -> int:
    try:
        return Version(version).major
    except InvalidVersion:
        return 0
