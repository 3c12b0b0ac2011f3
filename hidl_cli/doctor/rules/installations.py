"""The installation in use of each stack: its link ``current`` and its modulefile."""

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

#: Variables set by Lmod and Environment Modules.
_MODULE_VARIABLES = {"LMOD_CMD", "MODULES_CMD", "MODULESHOME"}


@dataclass(frozen=True)
class InUse:
    """The installations of a stack.

    Attributes:
        complete: Ids of all complete installations.
        current: Id that the link ``current`` points to, or None if the link is missing or dangling.
        has_modulefile: Whether the installation in use has a modulefile in the module tree.
        has_modules: Whether this shell has the ``module`` command.
    """

    stack: str
    directory: Path
    complete: tuple[str, ...]
    current: str | None
    has_modulefile: bool
    has_modules: bool


def probe(context: Context) -> tuple[InUse, ...]:
    """Examine the stack of the context, or by default all installed stacks of the site."""
    try:
        roots = context.roots or installation.roots(context.site)
    except MissingPrecondition:
        return ()
    directories = stack_directories(roots, context.site.name, context.stack)
    has_modules = not _MODULE_VARIABLES.isdisjoint(context.host.environment)
    return tuple(_in_use(directory, has_modules) for directory in directories)


def _in_use(directory: Path, has_modules: bool) -> InUse:
    complete = tuple(prefix.name for prefix in installation.prefixes(directory) if installation.at(prefix))
    current = installation.current(directory)
    name = current.name if current and current.name in complete else None
    modulefiles = installation.modulefiles(directory.parents[1], directory.parent.name, directory.name)
    has_modulefile = (modulefiles / (name or "")).is_file()
    return InUse(directory.name, directory, complete, name, has_modulefile, has_modules)


RULES: Rules[tuple[InUse, ...]] = Rules()


@RULES.rule(
    "HD083",
    "A stack is installed, but none of its installations is in use",
    severity="warning",
    why="hidl and `module load` find an installation through the link `current`; without it, the stack counts as not "
    "installed.",
)
def none_in_use(stacks: tuple[InUse, ...]) -> Iterator[Evidence]:
    """Report a warning if the link is missing or dangling although a complete installation exists."""
    for facts in stacks:
        if facts.complete and facts.current is None:
            if len(facts.complete) == 1:
                fix = f"restore the link to {facts.complete[0]} with: hidl doctor --fix"
            else:
                stack = sh(facts.stack)
                fix = f"hidl install {stack} (reuses the existing installation), or: hidl stack use {stack} ID"
            yield Evidence(
                f"{facts.directory} contains {', '.join(facts.complete)}, but no link `current`",
                fix,
                where=str(facts.directory),
            )


@RULES.rule(
    "HD084",
    "The modulefile of an installation is missing",
    severity="warning",
    why="`module avail` does not show the stack, and `module load` does not find it; hidl run does not need it.",
)
def not_shown(stacks: tuple[InUse, ...]) -> Iterator[Evidence]:
    """Report a warning, or an info if the shell has no `module` command. --fix restores the installation's copy."""
    for facts in stacks:
        if facts.current is not None and not facts.has_modulefile:
            yield Evidence(
                f"{facts.stack}/{facts.current} is in use, but has no modulefile",
                "restore it with: hidl doctor --fix",
                where=str(facts.directory),
                severity=None if facts.has_modules else "info",
            )


def _publish(finding: Finding, say: Callable[[str], None]) -> str | None:
    """Publish the only complete installation in a stack directory, as ``hidl install`` does."""
    directory = Path(finding.where or "")
    with hold_lock(directory / ".lock", say):
        current = installation.current(directory)
        complete = [prefix for prefix in installation.prefixes(directory) if installation.at(prefix)]
        chosen = current if current in complete else complete[0] if len(complete) == 1 else None
        if chosen is None:
            return None
        installation.publish(chosen)
    return f"{directory.name}: {chosen.name} is in use and has a modulefile"


SUBJECT = Subject(
    probe,
    RULES,
    fixes={
        "HD083": Fix(
            "links `current` to the only complete installation and writes its modulefile",
            "remove the link `current`",
            _publish,
        ),
        "HD084": Fix("restores the modulefile from the installation's copy", "remove the modulefile", _publish),
    },
)
