"""From the options of ``hidl shell`` to a launch plan, whose one step is what ``ranks`` starts in the shell."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.plan.launch_plan import Plan
from hidl_cli.plan.prepare import RunRequest, prepare
from hidl_cli.plan.workload import Parameter, Program, StackChoice, Workload
from hidl_cli.quoting import sh_line
from hidl_cli.schedulers import scheduler
from hidl_cli.site.schema import Site

#: The name of the workload that a shell is among runs.
NAME = "shell"
#: What stands for the program in the launch line of a shell's ranks.
PROGRAM = "PROGRAM"


def plan_shell(request: RunRequest, site: Site, command: Sequence[str]) -> Plan:
    """Resolve the options without side effects; ``command``: runs in the place of a shell, if not empty.

    Raises what ``prepare`` raises, and ``MissingPrecondition`` if the site's scheduler opens no shells.
    """
    assert request.stack is not None
    workload = Workload(
        name=NAME,
        title="a command at a terminal" if command else "an interactive shell",
        program=Program(command=[PROGRAM], arguments=[]),
        stacks=[StackChoice(stack=request.stack)],
        parameters={"command": Parameter(type="str", default="", help="what runs in the place of a shell")},
    )
    assignments = (f"command={sh_line(command)}",) if command else ()
    plan = prepare(replace(request, workload=NAME, assignments=assignments), site, workload)
    interactive = getattr(scheduler(plan.scheduler), "interactive", None)  # a plug-in may lack it
    line = interactive and interactive(plan.header, plan.run, terminal=True)
    if not line:
        raise MissingPrecondition(
            f"hidl shell is not supported with scheduler {plan.scheduler}",
            hint=f"open a shell on a node as the site documents it, and type in it: source {plan.activate}",
        )
    if not request.hypothetical and shutil.which(line[0]) is None:
        raise MissingPrecondition(
            f"{line[0]} not found on this host", hint=f"open the shell on a login host of site {site.name}"
        )
    return plan


def require_terminal(command: Sequence[str], *, terminal: bool) -> None:
    """Raise ``UsageError`` for a shell that nobody could type in."""
    if not command and not terminal:
        raise UsageError(
            "hidl shell requires a terminal: standard input and output are not one",
            hint="name a command: hidl shell STACK -- COMMAND...",
        )
