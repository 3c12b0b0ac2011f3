"""``hidl stack verify``, ``hidl stack sbom`` and ``hidl stack audit``: what installed stacks hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, PrefixOption, SiteOption, complete_stacks
from hidl_cli.commands.completers import complete_ids
from hidl_cli.commands.install import OfflineOption
from hidl_cli.commands.stack import StackArgument, app
from hidl_cli.errors import UsageError


@app.command()
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STACK]...", help="Stacks (default: all in use).", autocompletion=complete_stacks),
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Also installations that are not in use.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Replace what is damaged or missing, from the cache or the index.")
    ] = False,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    offline: OfflineOption = False,
    json: JsonOption = False,
) -> None:
    """Read every file of installed stacks, and name those that are not as they were installed; exit code 4 if any."""
    from hidl_cli.commands.progress import progress
    from hidl_cli.commands.render import emit_json, say
    from hidl_cli.commands.tables import show_table
    from hidl_cli.errors import ExitCode
    from hidl_cli.site.load import load_site
    from hidl_cli.stack.inspecting import inspect
    from hidl_cli.stack.selecting import selected

    where = load_site(site)
    inspected = [
        inspect(found, where, progress(), repair=repair, offline=offline)
        for found in selected(where, prefix, names or [], every=every)
    ]
    if json:
        emit_json("hidl.stack-verify/1", site=where.name, installations=[each.to_json() for each in inspected])
    else:
        show_table([each.row for each in inspected])
        for each in inspected:
            for line in each.lines:
                say(line)
    if not all(each.now.is_whole for each in inspected):
        raise typer.Exit(ExitCode.MISSING_PRECONDITION)


@app.command()
def sbom(
    name: StackArgument,
    id_: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="An installation's id, or its start (default: the one in use).",
            autocompletion=complete_ids,
        ),
    ] = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it (default: stdout).")
    ] = None,
    site: SiteOption = None,
    prefix: PrefixOption = None,
) -> None:
    """Print an installation's software bill of materials (CycloneDX 1.6, JSON): packages, builds, patches, licenses."""
    from hidl_cli.commands.render import say, write
    from hidl_cli.documents import write_text
    from hidl_cli.inventory.bill import cyclonedx
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation, switching
    from hidl_cli.stack.selecting import selected

    where = load_site(site)
    if id_:
        found = switching.choose(where, name, id_, root=installation.root_of(where, name, prefix))
    else:
        found = selected(where, prefix, [name], every=False)[0]
    text = cyclonedx(found)
    if output is None:
        write(text)
        return
    try:
        write_text(output, text)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from error
    say(f"{output}: the bill of materials of {name}")


@app.command()
def audit(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STACK]...", help="Stacks (default: all in use).", autocompletion=complete_stacks),
    ] = None,
    *,
    advisories: Annotated[
        list[Path] | None,
        typer.Option(
            "--advisories",
            metavar="FILE",
            help="Advisories in OSV's format: JSON or YAML, a zip archive or a directory of it. Repeatable.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="ID", help="An advisory that does not count. Repeatable.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also installations that are not in use.")] = False,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
) -> None:
    """Hold installed stacks against published vulnerabilities, without a network; exit code 4 if any counts."""
    from hidl_cli.commands.render import emit_json, printable, say, write
    from hidl_cli.errors import ExitCode
    from hidl_cli.inventory.audit import audit as find_vulnerabilities
    from hidl_cli.site.load import load_site
    from hidl_cli.stack.selecting import selected

    where = load_site(site)
    installations = selected(where, prefix, names or [], every=every)
    vulnerabilities = find_vulnerabilities(installations, advisories or [], ignore or [])
    found = list(zip(installations, vulnerabilities, strict=True))
    if json:
        documents = [
            {
                "stack": each.prefix.parent.name,
                "prefix": str(each.prefix),
                "current": each.is_current,
                "vulnerabilities": [one.to_json() for one in known],
            }
            for each, known in found
        ]
        emit_json("hidl.stack-audit/1", site=where.name, installations=documents)
    else:
        for each, known in found:
            for one in known:
                rated = f", {one.severity}" if one.severity else ""
                write(printable(f"{one.id}{rated}: {one.package} {one.version} of {each.prefix.parent.name}\n"))
                write(printable(f"  what: {one.text}\n"))
                write(printable(f"  {'does not count' if one.handled else 'fix'}: {one.handled or one.advice}\n"))
        count = sum(one.handled is None for _, known in found for one in known)
        say(f"{len(found)} installation(s), {count} known vulnerabilities that count")
    if any(one.handled is None for _, known in found for one in known):
        raise typer.Exit(ExitCode.MISSING_PRECONDITION)
