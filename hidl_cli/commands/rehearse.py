"""``hidl rehearse``: the lines that users type on a site, on a twin of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hidl_cli.commands.arguments import JsonOption, complete_sites, complete_stacks, complete_workloads

if TYPE_CHECKING:
    from hidl_twin.rehearsal import Rehearsal, Stage


def rehearse(
    sites: Annotated[
        list[str] | None, typer.Argument(metavar="SITE...", help="Sites.", autocompletion=complete_sites)
    ] = None,
    *,
    all_sites: Annotated[bool, typer.Option("--all", help="Every site that runs (hidl site list).")] = False,
    stack: Annotated[
        list[str] | None,
        typer.Option(help="A stack to install (default: mpi); repeatable.", autocompletion=complete_stacks),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="A workload to run (default: mpi-sanity); repeatable.", autocompletion=complete_workloads),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the workloads; repeatable.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of each kind that the twin has.")] = 4,
    tag: Annotated[str, typer.Option(help="The checks that `hidl validate` runs.")] = "smoke",
    check: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only those with this name; repeatable.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the twin up, with what was installed on it.")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page of Markdown, or replace these sites' rows of it.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Rehearse a site: a twin of it comes up, `install`, `run` and `validate` run on it, it goes down.

    The exit code is that of the first step that failed.
    """
    import sys

    from hidl_twin.page import page
    from hidl_twin.rehearsal import Script, can_be_rehearsed
    from hidl_twin.rehearsal import rehearse as carry_out

    from hidl_cli.commands.render import emit_json, printable, say, show_table
    from hidl_cli.documents import write_text
    from hidl_cli.errors import UsageError
    from hidl_cli.inputs.overlay import list_all
    from hidl_cli.redaction import shown
    from hidl_cli.site.load import load_site

    if bool(sites) == all_sites:
        raise UsageError("name a site, or take --all", hint="hidl site list shows which run")
    names = list(dict.fromkeys(sites or (entry.name for entry in list_all("site"))))
    script = Script(
        stacks=stack or Script.stacks,
        workloads=workload or Script.workloads,
        settings=set_ or (),
        nodes=nodes,
        tag=tag,
        checks=check or (),
    )
    reasons = {name: can_be_rehearsed(load_site(name)) for name in names}
    if sites and (left := {name: reason for name, reason in reasons.items() if reason}):
        name, reason = next(iter(left.items()))
        raise UsageError(f"site {name} cannot be rehearsed: {reason}", hint="hidl site list shows which run")
    found: list[Rehearsal] = []
    left_out = {name: reason for name, reason in reasons.items() if reason is not None}
    for name in (name for name, reason in reasons.items() if reason is None):
        say(f"{name}: {_clock()}")
        rehearsal = carry_out(name, script, lambda text: None, _tell_step, keep=keep)
        found.append(rehearsal)
        if report is not None:  # after each, for many take hours
            before = report.read_text(encoding="utf-8") if report.is_file() else ""
            write_text(report, shown(page(found, left_out, ["hidl", *sys.argv[1:]], before)))
    if json:
        emit_json("hidl.rehearsal/1", rehearsals=[_document(each) for each in found], left_out=left_out)
    elif len(found) == 1:
        show_table([_row(step) for step in found[0].steps], whole=("seconds", "verdict"))
    else:
        rows = [{"site": r.site, "seconds": f"{r.seconds:.0f}", "outcome": printable(r.outcome)} for r in found]
        show_table(
            [*rows, *({"site": name, "seconds": "", "outcome": f"left out: {left_out[name]}"} for name in left_out)]
        )
    code = next((each.exit_code for each in found if each.exit_code), 0)
    if code:
        say(f"the logs are in {', '.join(str(each.directory / 'logs') for each in found if each.exit_code)}")
        raise typer.Exit(code)


def _clock() -> str:
    from datetime import datetime

    return f"{datetime.now().astimezone():%H:%M:%S}"


def _tell_step(step: Stage) -> None:
    from hidl_cli.commands.render import say

    say(f"  {step.verdict}  {step.seconds:6.1f} s  {step.title}" + (f": {step.outcome}" if step.exit_code else ""))


def _row(step: Stage) -> dict[str, Any]:
    return {"step": step.title, "seconds": f"{step.seconds:.1f}", "verdict": step.verdict, "outcome": step.outcome}


def _document(rehearsal: Rehearsal) -> dict[str, Any]:
    return {
        "site": rehearsal.site,
        "directory": str(rehearsal.directory),
        "began": rehearsal.began.isoformat(timespec="seconds"),
        "exit_code": rehearsal.exit_code,
        "steps": [
            {
                "step": step.title,
                "seconds": round(step.seconds, 2),
                "verdict": step.verdict,
                "exit_code": step.exit_code,
                "outcome": step.outcome,
                "log": str(step.log) if step.log else None,
            }
            for step in rehearsal.steps
        ],
    }
