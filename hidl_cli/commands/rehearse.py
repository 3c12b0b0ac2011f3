"""``hidl rehearse``: dry-run the commands that users of a site type, on a twin of the site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hidl_cli.commands.arguments import JsonOption, complete_sites, complete_stacks, complete_workloads

if TYPE_CHECKING:
    from hidl_twin.rehearsal import Rehearsal, Stage


def rehearse(
    sites: Annotated[
        list[str] | None, typer.Argument(metavar="SITE...", help="Sites to rehearse.", autocompletion=complete_sites)
    ] = None,
    *,
    all_sites: Annotated[
        bool, typer.Option("--all", help="Rehearse every runnable site (see hidl site list).")
    ] = False,
    stack: Annotated[
        list[str] | None,
        typer.Option(help="Stack to install (default: mpi); repeatable.", autocompletion=complete_stacks),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(help="Workload to run (default: mpi-sanity); repeatable.", autocompletion=complete_workloads),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a workload parameter; repeatable.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes of each type in the twin.")] = 4,
    tag: Annotated[str, typer.Option(help="Tag of the checks to validate with.")] = "smoke",
    check: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only checks with this name; repeatable.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the twin running, with its installations.")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Markdown page, or update the sites' rows in it.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Dry-run a site on a local twin: start it, install, run and validate, then stop it.

    The exit code is that of the first step that fails.
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
        raise UsageError("expected either sites or --all", hint="list the runnable sites: hidl site list")
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
    if sites and (rejected := {name: reason for name, reason in reasons.items() if reason}):
        name, reason = next(iter(rejected.items()))
        raise UsageError(f"site {name} cannot be rehearsed: {reason}", hint="list the runnable sites: hidl site list")
    found: list[Rehearsal] = []
    left_out = {name: reason for name, reason in reasons.items() if reason is not None}
    for name in (name for name, reason in reasons.items() if reason is None):
        say(f"{name}: {_clock()}")
        rehearsal = carry_out(name, script, lambda text: None, _tell_step, keep=keep)
        found.append(rehearsal)
        if report is not None:  # updated after every site, because many sites take hours
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
        say(f"see the logs in {', '.join(str(each.directory / 'logs') for each in found if each.exit_code)}")
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
