"""``hidl site``: the machines that hidl knows, and whether their files are in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, SpackOption, complete_sites

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hidl_cli.inputs.overlay import OverlayEntry

app = typer.Typer(no_args_is_help=True, help="The machines that hidl knows.")


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the sites: title, scheduler, launchers, and whether hidl can run jobs or why not.

    `hidl config show --origin` tells where each one's file comes from.
    """
    from dataclasses import asdict

    from hidl_cli.api.running import sites
    from hidl_cli.commands.render import emit_json, show_sites

    rows = [asdict(site) for site in sites()]
    if json:
        emit_json("hidl.site-list/1", sites=rows)
    else:
        show_sites(rows)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A site's name.", autocompletion=complete_sites)],
    json: JsonOption = False,
) -> None:
    """Show a site as it resolves: with what it extends, and with what is detected of this machine."""
    import yaml

    from hidl_cli.commands.render import emit_json, printable, write
    from hidl_cli.inputs.load import examine, valid
    from hidl_cli.inputs.overlay import find
    from hidl_cli.site.checks import RULES
    from hidl_cli.site.load import resolve

    entry = find("site", name)
    examined = examine(RULES, entry)
    site = resolve(valid(examined)).model_dump(mode="json")
    if json:
        emit_json("hidl.site/1", site=site, origin=entry.origin, files=[str(file) for file in examined.files])
        return
    for file in examined.files:
        write(printable(f"# from {file}\n"))
    write(yaml.safe_dump(site, sort_keys=False, allow_unicode=True))


@app.command()
def check(
    sites: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME|FILE]...", help="Sites or files (default: all)", autocompletion=complete_sites),
    ] = None,
    on_host: Annotated[
        bool, typer.Option("--on-host", help="Hold compilers, externals and MPI libraries against this machine.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check site files: all faults, which facts they leave unknown, and why hidl cannot run jobs there if it cannot.

    Without a name, the unknown facts are counted. Ends with 3 where anything is wrong. `--on-host` asks this machine,
    of the detected site where no name is given, whether the software is where and what the file says.
    """
    if on_host:
        _check_on_host(sites, json=json)
        return
    from hidl_cli.commands.render import emit_json, printable, say, write
    from hidl_cli.errors import ExitCode
    from hidl_cli.inputs.load import counted, examine, faulty
    from hidl_cli.inputs.overlay import list_all
    from hidl_cli.inputs.problems import as_document
    from hidl_cli.plan.devices import reason_not_runnable
    from hidl_cli.site.checks import RULES
    from hidl_cli.site.load import consequence, resolve, unknown_facts

    entries = [_named(word) for word in sites] if sites else list_all("site")
    examined = [examine(RULES, entry) for entry in entries]
    unknown = [unknown_facts(resolve(one.model)) if one.model else () for one in examined]
    wrong = [one for one in examined if one.model is None]
    if json:
        documents = [
            {
                "name": one.entry.name,
                "file": str(one.entry.path),
                "findings": [as_document(problem) for problem in one.problems],
                "why_not": reason_not_runnable(one.model) if one.model else None,
                "unknown": [".".join(path) for path in paths],
            }
            for one, paths in zip(examined, unknown, strict=True)
        ]
        emit_json("hidl.site-check/1", ok=not wrong, sites=documents)
        if wrong:
            raise typer.Exit(ExitCode.INVALID_INPUT)
        return
    for one, paths in zip(examined, unknown, strict=True):
        state = "in order" if one.model else counted(len(one.problems))
        if sites:
            write(printable(f"{one.entry.name}: {state} ({one.entry.path})\n"))
            if one.model and (reason := reason_not_runnable(one.model)):
                write(printable(f"  cannot run jobs: {reason}\n"))
            for path in paths:
                effect = consequence(path)
                write(f"  unknown: {'.'.join(path)}{f' ({effect})' if effect else ''}\n")
        else:
            write(printable(f"{one.entry.name}: {state}{f', {len(paths)} unknown' if paths else ''}\n"))
    if any(unknown) and not sites:
        say("`hidl site check NAME` lists the facts that a site's file leaves unknown")
    if wrong:
        raise faulty(wrong)


def _check_on_host(sites: list[str] | None, *, json: bool) -> None:
    """Ask this machine about the software of sites; ends with 3 where a file is wrong about it."""
    from dataclasses import asdict

    from hidl_cli.commands.render import emit_json, say, show_table
    from hidl_cli.errors import InvalidInput
    from hidl_cli.inputs.load import examine, valid
    from hidl_cli.site.checks import RULES
    from hidl_cli.site.load import load_site
    from hidl_cli.site.on_host import check as held
    from hidl_cli.site.probes.host import ThisHost

    found = [valid(examine(RULES, _named(word))) for word in sites] if sites else [load_site()]
    checked = [(site.name, one) for site in found for one in held(site, ThisHost())]
    wrong = [one for _, one in checked if one.verdict == "wrong"]
    if json:
        documents = [{"site": name, **asdict(one), "path": ".".join(one.path)} for name, one in checked]
        emit_json("hidl.site-check-on-host/1", ok=not wrong, checks=documents)
    else:
        show_table(
            [{"site": name, "": one.verdict, "entry": ".".join(one.path), "found": one.text} for name, one in checked]
        )
        if not checked:
            say("the file names no compilers, externals or MPI libraries; `hidl site externals` drafts some")
    if wrong:
        raise InvalidInput(f"{len(wrong)} of {len(checked)} entries are not as they are on this machine")


@app.command()
def externals(spack: SpackOption = None) -> None:
    """Draft `externals` for a site file, from what `spack external find` finds on this machine.

    It is a draft: Spack takes programs by their names, and MPI libraries for others. Read it, keep what is right, and
    hold it against the machine: hidl site check --on-host
    """
    import os

    from hidl_cli.commands.arguments import directory
    from hidl_cli.commands.render import write
    from hidl_cli.site.load import load_site
    from hidl_cli.stack.providers.spack.drafting import draft as found
    from hidl_cli.stack.providers.spack.host import find as find_spack

    write(found(find_spack(load_site(), directory(spack), os.environ)))


@app.command()
def detect(json: JsonOption = False) -> None:
    """Show which site this is and why, and what hidl finds on this machine."""
    from dataclasses import asdict

    from hidl_cli.commands.render import emit_json, say, show_table
    from hidl_cli.site.detect import choose
    from hidl_cli.site.detect import detect as detect_sites
    from hidl_cli.site.load import FALLBACK, as_document, explained
    from hidl_cli.site.machine import gpus, machine
    from hidl_cli.site.probes.host import ThisHost, schedulers

    host = ThisHost()
    outcomes = detect_sites(host, thorough=True)
    found = gpus()
    facts = asdict(machine()) | {"gpus": found.gpus, "gpu_model": found.gpu_model}
    here = schedulers(host)
    if json:
        site = choose(outcomes)
        emit_json(
            "hidl.site-detect/1",
            site=site or FALLBACK,
            detected=site is not None,
            explanation=explained(site, outcomes, here).splitlines(),
            sites=[as_document(one) for one in outcomes],
            schedulers=here,
            machine=facts,
        )
        return
    told = [one for one in outcomes if one.conditions or one.problems]
    show_table([{"site": one.site, "": "yes" if one.matched else "no", "why": "; ".join(one.reasons)} for one in told])
    if len(told) < len(outcomes):
        say("without a `match`, never detected: " + ", ".join(one.site for one in outcomes if one not in told))
    if found.gpus == 0:
        del facts["gpu_model"]
    show_table([{"this machine": key, "": "unknown" if value is None else value} for key, value in facts.items()])
    if found.reason:
        say(f"the number of GPUs is unknown: {found.reason}")
    say(explained(choose(outcomes), outcomes, here))


@app.command()
def new(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The site's name (default: the cluster's, or the host's).")
    ] = None,
    *,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - prints it (default: your sites)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    alone: Annotated[bool, typer.Option("--alone", help="This machine only, whatever scheduler is here.")] = False,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="DIR", help="Not this machine, but the one that was recorded in DIR."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Draft a site file from what is found on this machine: its scheduler, nodes, GPUs, network and MPI libraries.

    What is not found is null. Run it on a login node of the cluster that you want to describe.
    """
    from hidl_cli.commands.render import emit_json, say, write
    from hidl_cli.site import draft as drafting
    from hidl_cli.site.draft import default_name, draft
    from hidl_cli.site.probes.host import ThisHost
    from hidl_cli.site.probes.survey import survey
    from hidl_cli.site.recordings import survey_from

    if name is not None or output not in (None, "-"):  # refused before the machine is asked, which can take seconds
        drafting.require_free(drafting.target(name, output, ""), force=force)
    failures: Sequence[str] = ()
    if from_ is None:
        host = ThisHost()
        found, failures = survey(host, alone=alone), host.failures
    else:
        found, failures = survey_from(Path(from_), alone=alone)
    target = drafting.target(name, output, default_name(found))
    drafting.require_free(target, force=force)
    made = draft(found, target.name)
    if target.file is not None:
        drafting.write(made, target.file)
    remarks = [*made.remarks, *failures]
    if json:
        file = None if target.file is None else str(target.file)
        emit_json(
            "hidl.site-new/1",
            name=made.name,
            file=file,
            text=made.text,
            remarks=remarks,
            read=made.read,
            open=made.open,
        )
        return
    for one in made.read:
        say(f"read {one}")
    for remark in remarks:
        say(remark)
    for question in made.open:
        say(f"open: {question}")
    if target.file is None:
        write(made.text)
        return
    say(f"drafted {target.file}")
    for hidden in drafting.hidden(target):
        say(f"it comes before {hidden}, which has the same name")
    what = made.name if drafting.is_found(target) else str(target.file)
    say(f"next: read it and fill in what is null; `hidl site check {what}` lists what is still unknown")


@app.command()
def schema() -> None:
    """Print the JSON Schema of site files, for editors."""
    from hidl_cli.commands.render import write
    from hidl_cli.inputs.load import text

    write(text("site"))


def _named(word: str) -> OverlayEntry:
    """The entry that a word of the command line means: a file where it looks like one, else a site's name."""
    from hidl_cli.errors import UsageError
    from hidl_cli.inputs.overlay import at_path, find, is_base

    path = Path(word)
    if is_base(path):
        raise UsageError(f"{word} is a base, not a site", hint="check a site that extends it")
    return at_path("site", path) if path.suffix in (".yaml", ".yml") or "/" in word else find("site", word)
