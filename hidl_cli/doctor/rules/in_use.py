"""Rules: the links by which an installation is found."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.doctor.context import Context
from hidl_cli.doctor.probes.in_use import InUse, probe
from hidl_cli.quoting import sh
from hidl_workloads.doctor.finding import Finding, Rules, Seen

RULES: Rules[InUse] = Rules()


def examine(context: Context) -> list[Finding]:
    """What is wrong with the links of each stack."""
    return [finding for one in probe(context) for finding in RULES.findings(one)]


@RULES.rule(
    "HD083",
    "A stack is installed, and none of its installations is in use",
    severity="warning",
    why="hidl and `module load` find an installation by the link `current`; without it they say that the stack is not "
    "installed.",
)
def none_in_use(facts: InUse) -> Iterator[Seen]:
    """The link is not there, or leads to nothing whole, though a whole installation lies beside it."""
    if facts.published and facts.current is None:
        one = len(facts.published) == 1
        mend = f"hidl doctor --fix restores the link to {facts.published[0]}" if one else _choose(facts)
        yield Seen(
            f"{facts.directory} holds {', '.join(facts.published)}, and no link `current` leads to any",
            mend,
            where=str(facts.directory),
        )


@RULES.rule(
    "HD084",
    "The modulefile of an installation is not where modules are looked for",
    severity="warning",
    why="`module avail` does not show the stack, and `module load` does not find it; hidl run does not need it.",
)
def not_shown(facts: InUse) -> Iterator[Seen]:
    """The installation in use has its own copy, from which it can be restored. Without modules: good to know."""
    if facts.current is not None and not facts.shown:
        yield Seen(
            f"{facts.stack}/{facts.current} is in use, and has no modulefile",
            "hidl doctor --fix writes it again",
            where=str(facts.directory),
            severity=None if facts.has_modules else "info",
        )


def _choose(facts: InUse) -> str:
    return f"hidl install {sh(facts.stack)} (it takes what is there), or link one: ln -s ID {facts.directory}/current"
