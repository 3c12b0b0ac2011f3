"""Which installation of each stack is in use: the link ``current``, and its modulefile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hidl_cli.doctor.context import Context, Fix, Subject, stack_directories
from hidl_cli.errors import MissingPrecondition
from hidl_cli.quoting import sh
from hidl_cli.stack import installation
from hidl_cli.stack.installation import hold_lock
from hidl_workloads.doctor.finding import Evidence, Finding, Rules

#: Lmod and Environment Modules set these.
_MODULE_VARIABLES = {"LMOD_CMD", "MODULES_CMD", "MODULESHOME"}


@dataclass(frozen=True)
class InUse:
    """One stack.

    ``published``: ids of its complete installations. ``current``: the id that the link ``current`` points to, None if
    it is missing or dangling. ``shown``: its modulefile is in the module tree. ``has_modules``: this shell has the
    command ``module``.
    """

    stack: str
    directory: Path
    published: tuple[str, ...]
    current: str | None
    shown: bool
    has_modules: bool


def probe(context: Context) -> tuple[InUse, ...]:
    """The stack of the context, else every installed stack of the site."""
    try:
        roots = context.roots or installation.roots(context.site)
    except MissingPrecondition:
        return ()
    directories = stack_directories(roots, context.site.name, context.stack)
    has_modules = not _MODULE_VARIABLES.isdisjoint(context.host.environment)
    return tuple(_in_use(directory, has_modules) for directory in directories)


def _in_use(directory: Path, has_modules: bool) -> InUse:
    published = tuple(prefix.name for prefix in installation.prefixes(directory) if installation.at(prefix))
    current = installation.current(directory)
    name = current.name if current and current.name in published else None
    modulefiles = installation.modulefiles(directory.parents[1], directory.parent.name, directory.name)
    shown = (modulefiles / (name or "")).is_file()
    return InUse(directory.name, directory, published, name, shown, has_modules)


RULES: Rules[tuple[InUse, ...]] = Rules()


@RULES.rule(
    "HD083",
    "A stack is installed, but none of its installations is in use",
    severity="warning",
    why="hidl and `module load` find an installation through the link `current`; without it, the stack counts as not "
    "installed.",
)
def none_in_use(stacks: tuple[InUse, ...]) -> Iterator[Evidence]:
    """The link is missing or dangling, and a complete installation exists."""
    for facts in stacks:
        if facts.published and facts.current is None:
            one = len(facts.published) == 1
            yield Evidence(
                f"{facts.directory} contains {', '.join(facts.published)}, but no link `current`",
                f"hidl doctor --fix restores the link to {facts.published[0]}" if one else _choose(facts),
                where=str(facts.directory),
            )


def _choose(facts: InUse) -> str:
    return f"hidl install {sh(facts.stack)} (reuses what is installed), or: hidl stack use {sh(facts.stack)} ID"


@RULES.rule(
    "HD084",
    "The modulefile of an installation is missing",
    severity="warning",
    why="`module avail` does not show the stack, and `module load` does not find it; hidl run does not need it.",
)
def not_shown(stacks: tuple[InUse, ...]) -> Iterator[Evidence]:
    """The installation in use keeps a copy, from which --fix restores it. An info without the command `module`."""
    for facts in stacks:
        if facts.current is not None and not facts.shown:
            yield Evidence(
                f"{facts.stack}/{facts.current} is in use, but has no modulefile",
                "hidl doctor --fix restores it",
                where=str(facts.directory),
                severity=None if facts.has_modules else "info",
            )


def _publish(finding: Finding, say: Callable[[str], None]) -> str | None:
    """Publish the only complete installation of a stack directory, as ``hidl install`` does."""
    directory = Path(finding.where or "")
    with hold_lock(directory / ".lock", say):
        current = installation.current(directory)
        complete = [prefix for prefix in installation.prefixes(directory) if installation.at(prefix)]
        chosen = current if current in complete else complete[0] if len(complete) == 1 else None
        if chosen is None:
            return None
        installation.publish(chosen)
    return f"{directory.name}: {chosen.name} is in use and has its modulefile"


SUBJECT = Subject(
    probe,
    RULES,
    fixes={
        "HD083": Fix(
            "links `current` to the only complete installation, and writes its modulefile",
            "remove the link `current`",
            _publish,
        ),
        "HD084": Fix("restores the modulefile from the installation's copy", "remove the modulefile", _publish),
    },
)
