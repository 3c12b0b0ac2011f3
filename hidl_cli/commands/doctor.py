"""``hidl doctor`` and ``hidl config``: check this machine, the site file and the stacks, and show hidl's own files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from hidl_cli.commands.arguments import JsonOption, PrefixOption, complete_stacks, with_options
from hidl_cli.commands.render import emit_json, say, show, show_table, summary, write
from hidl_cli.errors import ExitCode, UsageError
from hidl_cli.launch.options import AllocationOptions

if TYPE_CHECKING:
    from hidl_cli.doctor.examine import DoctorReport
    from hidl_workloads.doctor.finding import Rule


app = typer.Typer(
    invoke_without_command=True, help="Check this machine, the site file and the stacks, and suggest fixes."
)


def complete_rules(incomplete: str) -> list[str]:
    """Complete rule ids."""
    from hidl_cli.doctor.context import list_rules

    return [rule.id for rule in list_rules() if rule.id.startswith(incomplete.upper())]


_HELP = {
    "nodes": "Also check this many compute nodes, in this allocation or a short job (with --hosts, all hosts).",
    "partition": "Partition of the nodes (default: the site's).",
    "account": "Account to charge for the job.",
}


@app.callback()
@with_options(AllocationOptions, only=("site", "nodes", "hosts", "hostfile", "partition", "account"), help=_HELP)
def doctor(
    context: typer.Context,
    *,
    options: AllocationOptions,
    stack: Annotated[
        str | None,
        typer.Option(help="Stack to check (default: all installed ones).", autocompletion=complete_stacks),
    ] = None,
    prefix: PrefixOption = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Apply safe and reversible fixes (see hidl doctor rules).")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Verify the content of all files of the stacks, not only their sizes.")
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Only search this log of a run or build for known errors (- is stdin)."),
    ] = None,
    collect: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Only record this machine in DIR, anonymized, so that others can analyze it."),
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="DIR", help="Check a machine recorded with --collect instead.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check for problems; the exit code is 4 if there is an error."""
    if context.invoked_subcommand is not None:
        return
    of_files = {"--log": log, "--collect": collect, "--from": from_}
    if instead := next((name for name, value in of_files.items() if value is not None), None):
        others = {
            **{name: value for name, value in of_files.items() if name != instead},
            "--stack": stack,
            "--nodes": options.nodes,
            "--hosts": options.hosts,
            "--hostfile": options.hostfile,
            "--partition": options.partition,
            "--account": options.account,
            "--prefix": prefix,
            "--fix": fix,
            "--deep": deep,
            **({"--site": options.site} if log is not None else {}),
        }
        _only(instead, [name for name, value in others.items() if value])
    if log is not None:
        _diagnose(log, json=json)
        return
    if collect is not None:
        _collect(Path(collect), options.site, json=json)
        return
    if from_ is not None:
        _examine_recorded(Path(from_), options.site, json=json)
        return
    from hidl_cli.doctor.examine import contexts, examine
    from hidl_cli.launch.hosts import on_hosts
    from hidl_cli.site.load import load_site
    from hidl_cli.stack.checks import load_stack
    from hidl_cli.stack.installation import roots

    named = options.named_hosts
    machine = on_hosts(load_site(options.site), named)
    nodes = options.nodes or (len(named.names) if named else None)
    if stack is not None:
        load_stack(stack)  # raises UsageError if it is unknown
    places = roots(machine, prefix)
    asked = contexts(machine, roots=places, stack=stack, nodes=nodes, deep=deep)
    examined = examine(asked)
    fixed: list[dict[str, str]] = []
    if fix:
        from hidl_cli.doctor.context import fix as apply_fixes

        for finding, done in apply_fixes(examined.findings, say):
            fixed.append({"rule": finding.rule, "done": done})
            if not json:
                say(f"fixed {finding.rule}: {done}")
        if fixed:
            examined = examine(contexts(machine, roots=places, stack=stack, nodes=nodes, deep=deep))
    if nodes is not None:
        from hidl_cli.doctor.nodes import examine_nodes

        preferred = sorted(asked, key=lambda context: not context.is_active)
        installed = next((context.installation for context in preferred if context.installation), None)
        examined += examine_nodes(machine, installed, nodes, job=options, tell=say)
    _tell(examined, machine.name, asked[0].host.hostname, fixed, json=json)
    if examined.errors:
        raise typer.Exit(ExitCode.MISSING_PRECONDITION)


@app.command()
def explain(
    rule: Annotated[str, typer.Argument(help="Id of a rule, such as HD002.", autocompletion=complete_rules)],
    json: JsonOption = False,
) -> None:
    """Explain a rule: what it checks, why it matters, and whether --fix applies to it."""
    from hidl_cli.doctor.context import find_rule

    found = find_rule(rule)
    document = _document(found)
    if json:
        emit_json("hidl.doctor-rule/1", **document)
        return
    lines = [f"{found.id} ({found.severity}): {found.title}", f"why: {found.why}"]
    lines += [f"when: {document['when']}"] if document["when"] else []
    lines += [f"--fix: {document['fix']}" if document["fix"] else "--fix: not available"]
    write("\n".join(lines) + "\n")


@app.command()
def rules(json: JsonOption = False) -> None:
    """List all rules, for this machine, for jobs and for a job's output."""
    from hidl_cli.doctor.context import list_rules

    documents = [_document(rule) for rule in list_rules()]
    if json:
        emit_json("hidl.doctor-rules/1", rules=documents)
        return
    show_table(
        [
            {
                "rule": each["id"],
                "severity": each["severity"],
                "finds": each["title"],
                "--fix": "yes" if each["fix"] else "",
            }
            for each in documents
        ],
        whole=("rule",),
    )


_DOES = {
    "--log": "only reads a log",
    "--collect": "only records this machine",
    "--from": "only reads a recording",
}


def _only(option: str, others: list[str]) -> None:

    if others:
        raise UsageError(f"{option} cannot be combined with {', '.join(others)}: it {_DOES[option]}")


def _collect(directory: Path, site: str | None, *, json: bool) -> None:
    """Record this machine and show the next steps."""
    from hidl_cli.doctor.examine import collect

    files = collect(directory, site)
    if json:
        emit_json("hidl.doctor-collect/1", directory=str(directory), files=files)
        return
    say(f"recorded {len(files)} outputs and files in {directory}")
    say("names of users, hosts and accounts, addresses and secrets are replaced; review the files before sharing them")
    say(f"next, on any machine, run: hidl doctor --from {directory} or hidl site new --from {directory}")


def _examine_recorded(directory: Path, site: str | None, *, json: bool) -> None:
    from hidl_cli.doctor.examine import examine_recorded

    examined, name, host = examine_recorded(directory, site)
    _tell(examined, name, host, [], json=json)
    if examined.errors:
        raise typer.Exit(ExitCode.MISSING_PRECONDITION)


def _diagnose(log: str, *, json: bool) -> None:
    """Show the likely causes of the errors in a log, most likely first."""
    from hidl_cli.diagnoses import search_file

    try:
        causes = search_file(log)
    except OSError as error:
        raise UsageError(f"cannot read {log}: {error.strerror}", hint="to read standard input, use --log -") from error
    if json:
        keys = ("rule", "severity", "title", "why", "fix")
        documents = [
            {key: getattr(cause.finding, key) for key in keys}
            | {"evidence": {"line": cause.line, "text": cause.finding.seen}}
            for cause in causes
        ]
        emit_json("hidl.doctor-log/1", log=log, causes=documents)
    else:
        show(replace(cause.finding, seen=f"line {cause.line}: {cause.finding.seen}") for cause in causes)
        say(f"{log}: {summary([cause.finding for cause in causes]) if causes else 'no known error found'}")
    if any(cause.finding.severity == "error" for cause in causes):
        raise typer.Exit(ExitCode.MISSING_PRECONDITION)


def _document(rule: Rule[Any]) -> dict[str, Any]:
    from inspect import getdoc

    from hidl_cli.doctor.context import fixes

    fix = fixes().get(rule.id)
    return {
        "id": rule.id,
        "severity": rule.severity,
        "title": rule.title,
        "why": rule.why,
        "when": " ".join((getdoc(rule.check) or "").split()),
        "fix": f"{fix.does}; to undo: {fix.undo}" if fix else None,
    }


def _tell(examined: DoctorReport, site: str, host: str, fixed: list[dict[str, str]], *, json: bool) -> None:

    if json:
        findings = [finding.to_json() for finding in examined.findings]
        emit_json("hidl.doctor/1", site=site, host=host, findings=findings, unknown=list(examined.unknown), fixed=fixed)
        return
    show(examined.findings)
    for one in examined.unknown:
        say(f"unknown: {one}", style="dim")
    say(f"site {site}, host {host}: {summary(examined.findings)}")


config_app = typer.Typer(no_args_is_help=True, help="Show the files and plug-ins that hidl uses.")


@config_app.callback()
def _group() -> None:
    pass


@config_app.command("show")
def show_config(
    origin: Annotated[
        bool, typer.Option("--origin", help="Also show each file, and the files that it shadows.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show all sites, stacks and workloads, and whether each comes from the user, from /etc/hidl or from hidl."""
    from hidl_cli import paths
    from hidl_cli.inputs.overlay import KindName, list_all

    rows = [
        {
            "kind": kind,
            "name": entry.name,
            "origin": entry.origin,
            "file": str(entry.path),
            "hides": [str(hidden.path) for hidden in entry.shadows],
        }
        for kind in get_args(KindName)
        for entry in list_all(kind)
    ]
    if json:
        emit_json("hidl.config/1", entries=rows)
        return
    say(f"searched in this order: {paths.user_config()}, {paths.system_config()}, {paths.shipped()} (shipped)")
    hidden = [] if origin else ["file", "hides"]
    show_table([{key: value for key, value in row.items() if key not in hidden} for row in rows])


@config_app.command("plugins")
def show_plugins(json: JsonOption = False) -> None:
    """Show the plug-ins of installed packages and whether each can be loaded."""
    from hidl_cli.doctor.rules.configuration import find_plugins

    rows = [
        {
            "kind": plugin.kind,
            "name": plugin.entry.name,
            "package": plugin.entry.package,
            "target": plugin.entry.target,
            "problem": plugin.problem,
        }
        for plugin in find_plugins()
    ]
    if json:
        emit_json("hidl.plugins/1", plugins=rows)
        return
    if not rows:
        say("no plug-ins found")
        return
    show_table([row | {"problem": row["problem"] or "none"} for row in rows])


@config_app.command("schema")
def write_schemas(
    directory: Annotated[
        Path | None, typer.Argument(help="Directory to write to (default: schema/ beside your own files).")
    ] = None,
) -> None:
    """Write the JSON Schemas of site, stack and workload files, for checks in editors."""
    from hidl_cli import documents, paths
    from hidl_cli.inputs.load import text
    from hidl_cli.inputs.overlay import KindName

    directory = directory or paths.user_config() / "schema"
    directory.mkdir(parents=True, exist_ok=True)
    for kind in get_args(KindName):
        documents.write_text(directory / f"{kind}.json", text(kind))
    say(f"wrote site.json, stack.json and workload.json to {directory}")
    say(
        "to check a site file in an editor, begin it with: # yaml-language-server: $schema="
        + str(directory.absolute() / "site.json")
    )
