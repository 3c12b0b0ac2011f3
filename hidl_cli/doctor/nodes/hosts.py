"""The rule on hosts without a scheduler that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.schedulers.ssh.guards import Trouble
from hidl_workloads.doctor.finding import Evidence, Rules

RULES: Rules[tuple[Trouble, ...]] = Rules()


@RULES.rule(
    "HD055",
    "A host cannot be used",
    severity="error",
    why="Runs on this host are refused before anything starts.",
)
def unusable(troubles: tuple[Trouble, ...]) -> Iterator[Evidence]:
    """What hidl finds when it looks at the hosts of a run."""
    for each in troubles:
        yield Evidence(each.what, each.fix.replace("{host}", each.host), each.host)
