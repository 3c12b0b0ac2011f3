"""``hidl doctor``: what is wrong with this machine, the site's file and the installed stacks, and what mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hidl_cli.commands.arguments import JsonOption, PrefixOption, SiteOption, complete_stacks

if TYPE_CHECKING:
    from hidl_cli.doctor.examine import Examined
    from hidl_workloads.doctor.finding import Rule

app = typer.Typer(
    invoke_without_command=True, help="Find what is wrong before a job does: findings, each with what mends it."
)


def complete_rules(incomplete: str) -> list[str]:
    """The ids of rules that begin so."""
    from hidl_cli.doctor.catalogue import rules

    return [rule.id for rule in rules() if rule.id.startswith(incomplete.upper())]


@app.callback()
def doctor(
    context: typer.Context,
    *,
    site: SiteOption = None,
    stack: Annotated[
        str | None,
        typer.Option(help="This stack (default: every installed one).", autocompletion=complete_stacks),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Look at so many compute nodes too: in this allocation, or a short job.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", help="Where these nodes are asked for (default: the site's).")
    ] = None,
    account: Annotated[str | None, typer.Option("--account", "-A", help="The project that pays for them.")] = None,
    prefix: PrefixOption = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what is safe to mend and can be taken back; see hidl doctor rules.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Look for what is wrong; exit code 4 where something will fail, or tell lies."""
    if context.invoked_subcommand is not None:
        return
    from hidl_cli.commands.render import say
    from hidl_cli.doctor.examine import contexts, examine
    from hidl_cli.errors import ExitCode
    from hidl_cli.site.load import load_site
    from hidl_cli.stack.installation import root
    from hidl_cli.stack.load import load_stack

    machine = load_site(site)
    if stack is not None:
        load_stack(stack)  # one that there is not is a fault of the command line
    where = root(machine, prefix)
    asked = contexts(machine, root=where, stack=stack, nodes=nodes)
    examined = examine(asked)
    fixed: list[dict[str, str]] = []
    if fix:
        from hidl_cli.doctor.fix import fix as mend

        for finding, done in mend(examined.findings, say):
            fixed.append({"rule": finding.rule, "done": done})
            if not json:
                say(f"mended {finding.rule}: {done}")
        if fixed:
            examined = examine(contexts(machine, root=where, stack=stack, nodes=nodes))
    if nodes is not None:
        from hidl_cli.doctor.job import examine_nodes
        from hidl_cli.launch.allocation import Asked

        preferred = sorted(asked, key=lambda context: not context.is_active)
        installed = next((context.installation for context in preferred if context.installation), None)
        job = Asked(partition=partition, account=account)
        examined += examine_nodes(machine, installed, nodes, asked=job, tell=say)
    _tell(examined, machine.name, asked[0].host.hostname, fixed, json=json)
    if examined.errors:
        raise typer.Exit(ExitCode.MISSING_PRECONDITION)


@app.command()
def explain(
    rule: Annotated[str, typer.Argument(help="A rule's id, such as HD002.", autocompletion=complete_rules)],
    json: JsonOption = False,
) -> None:
    """Tell what a rule looks for, why it matters, and whether --fix mends it."""
    from hidl_cli.commands.render import emit_json, write
    from hidl_cli.doctor.catalogue import find

    found = find(rule)
    document = _document(found)
    if json:
        emit_json("hidl.doctor-rule/1", **document)
        return
    lines = [f"{found.id} ({found.severity}): {found.title}", f"why: {found.why}"]
    lines += [f"when: {document['when']}"] if document["when"] else []
    lines += [f"--fix: {document['fix']}" if document["fix"] else "--fix: leaves it to you"]
    write("\n".join(lines) + "\n")


@app.command()
def rules(json: JsonOption = False) -> None:
    """List every rule: those of this machine, those of jobs, and those by what a job printed."""
    from hidl_cli.commands.render import emit_json
    from hidl_cli.commands.tables import show_table
    from hidl_cli.doctor.catalogue import rules as known

    documents = [_document(rule) for rule in known()]
    if json:
        emit_json("hidl.doctor-rules/1", rules=documents)
        return
    show_table(
        [
            {
                "rule": each["id"],
                "severity": each["severity"],
                "finds": each["title"],
                "--fix": "mends it" if each["fix"] else "",
            }
            for each in documents
        ],
        whole=("rule",),
    )


def _document(rule: Rule[Any]) -> dict[str, Any]:
    from inspect import getdoc

    from hidl_cli.doctor.fix import FIXES

    fix = FIXES.get(rule.id)
    return {
        "id": rule.id,
        "severity": rule.severity,
        "title": rule.title,
        "why": rule.why,
        "when": " ".join((getdoc(rule.check) or "").split()),
        "fix": f"{fix.does}; to undo it: {fix.undo}" if fix else None,
    }


def _tell(examined: Examined, site: str, host: str, fixed: list[dict[str, str]], *, json: bool) -> None:
    from hidl_cli.commands.findings import show, summary
    from hidl_cli.commands.render import emit_json, say

    if json:
        findings = [finding.to_json() for finding in examined.findings]
        emit_json("hidl.doctor/1", site=site, host=host, findings=findings, unknown=list(examined.unknown), fixed=fixed)
        return
    show(examined.findings)
    for one in examined.unknown:
        say(f"unknown: {one}", style="dim")
    say(f"site {site}, host {host}: {summary(examined.findings)}")
