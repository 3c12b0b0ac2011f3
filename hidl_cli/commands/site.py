"""``hidl site``: list, check and draft site files."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, SpackOption, complete_sites, directory
from hidl_cli.commands.render import emit_json, printable, say, show_sites, show_table, write
from hidl_cli.errors import ExitCode, InvalidInput, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hidl_cli.inputs.overlay import OverlayEntry

app = typer.Typer(no_args_is_help=True, help="Manage site definitions.")


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the sites with their scheduler and launchers, and whether hidl can run jobs there.

    For the file behind each site, see `hidl config show --origin`.
    """
    from hidl_cli.api.execution import sites

    rows = [asdict(site) for site in sites()]
    if json:
        emit_json("hidl.site-list/1", sites=rows)
    else:
        show_sites(rows)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the site.", autocompletion=complete_sites)],
    json: JsonOption = False,
) -> None:
    """Show a resolved site, including everything that it extends and that is detected on this machine."""
    import yaml

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
        typer.Argument(metavar="[NAME|FILE]...", help="Sites or files (default: all).", autocompletion=complete_sites),
    ] = None,
    on_host: Annotated[
        bool, typer.Option("--on-host", help="Compare compilers, externals and MPI libraries with this machine.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check site files: report all errors, unknown facts, and why hidl cannot run jobs there.

    Without a name, unknown facts are only counted. The exit code is 3 if a file is invalid. With --on-host, the
    software on this machine is compared with the file of the site (default: the detected one).
    """
    if on_host:
        _check_on_host(sites, json=json)
        return
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
        state = "valid" if one.model else counted(len(one.problems))
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
        say("to list the unknown facts of a site, run: hidl site check NAME")
    if wrong:
        raise faulty(wrong)


def _check_on_host(sites: list[str] | None, *, json: bool) -> None:
    """Compare the software in site files with this machine; the exit code is 3 if an entry is wrong."""
    from hidl_cli.inputs.load import examine, valid
    from hidl_cli.site.checks import RULES
    from hidl_cli.site.discovery import check_entries
    from hidl_cli.site.load import load_site
    from hidl_cli.site.probes.host import ThisHost

    found = [valid(examine(RULES, _named(word))) for word in sites] if sites else [load_site()]
    checked = [(site.name, one) for site in found for one in check_entries(site, ThisHost())]
    wrong = [one for _, one in checked if one.verdict == "wrong"]
    if json:
        documents = [{"site": name, **asdict(one), "path": ".".join(one.path)} for name, one in checked]
        emit_json("hidl.site-check-on-host/1", ok=not wrong, checks=documents)
    else:
        show_table(
            [{"site": name, "": one.verdict, "entry": ".".join(one.path), "found": one.text} for name, one in checked]
        )
        if not checked:
            say("the file has no compilers, externals or MPI libraries; to draft externals, run: hidl site externals")
    if wrong:
        raise InvalidInput(f"{len(wrong)} of {len(checked)} entries do not match this machine")


@app.command()
def externals(spack: SpackOption = None) -> None:
    """Draft `externals` for a site file from the output of `spack external find`.

    Review the draft: Spack identifies programs by name only and mistakes some MPI libraries for others. Then compare it
    with this machine: hidl site check --on-host
    """
    from hidl_cli.site.load import load_site
    from hidl_cli.stack.providers.spack.call import draft_externals
    from hidl_cli.stack.providers.spack.host import find as find_spack

    write(draft_externals(find_spack(load_site(), directory(spack), os.environ)))


@app.command()
def detect(json: JsonOption = False) -> None:
    """Show the detected site and why it was chosen, and the facts that hidl detects on this machine."""
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
    shown = [one for one in outcomes if one.conditions or one.problems]
    show_table([{"site": one.site, "": "yes" if one.matched else "no", "why": "; ".join(one.reasons)} for one in shown])
    if len(shown) < len(outcomes):
        say("never detected, because they have no `match`: " + ", ".join(o.site for o in outcomes if o not in shown))
    if found.gpus == 0:
        del facts["gpu_model"]
    show_table([{"this machine": key, "": "unknown" if value is None else value} for key, value in facts.items()])
    if found.reason:
        say(f"the number of GPUs is unknown: {found.reason}")
    say(explained(choose(outcomes), outcomes, here))


@app.command()
def new(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Name of the site (default: the name of the cluster or the host)."),
    ] = None,
    *,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write; - is stdout (default: your sites)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    alone: Annotated[bool, typer.Option("--alone", help="Describe only this machine, without its scheduler.")] = False,
    from_: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="DIR|FILE",
            help="Describe the machine recorded in DIR (see hidl doctor --collect), or the one in configuration files "
            "of Spack, Stackinator, ReFrame or Benchpark; may be repeated.",
        ),
    ] = None,
    no_isolation: Annotated[
        bool,
        typer.Option(
            "--no-isolation", help="Execute a settings.py of --from even if hidl cannot isolate it on this machine."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Draft a site file from this machine: its scheduler, nodes, GPUs, network and MPI libraries.

    With --from, draft it from saved outputs or from the configuration files of other tools. Unknown facts are null. Run
    this on a login node of the cluster that you want to describe.
    """
    from hidl_cli.site import draft as drafts
    from hidl_cli.site.configurations.draft import configuration_files, draft_from_files
    from hidl_cli.site.draft import default_name, draft
    from hidl_cli.site.outputs import survey_from
    from hidl_cli.site.probes.host import ThisHost
    from hidl_cli.site.probes.survey import survey

    if name is not None or output not in (None, "-"):  # fail before the probes, which can take seconds
        drafts.require_free(drafts.target(name, output, ""), force=force)
    failures: Sequence[str] = ()
    places = [Path(one) for one in from_ or ()]
    if files := configuration_files(places):
        stem = None if output in (None, "-") else Path(output).stem
        named = [place for place in places if not place.is_dir()]
        default, drafted = draft_from_files(files, name or stem, named=named, isolated=not no_isolation)
    else:
        if places:
            found, failures = survey_from(places[0], alone=alone)
        else:
            host = ThisHost()
            found, failures = survey(host, alone=alone), host.failures
        default, drafted = default_name(found), partial(draft, found)
    target = drafts.target(name, output, default)
    drafts.require_free(target, force=force)
    made = drafted(target.name)
    if target.file is not None:
        drafts.write(made, target.file)
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
    for hidden in drafts.hidden(target):
        say(f"it takes precedence over {hidden}, which has the same name")
    what = made.name if drafts.is_found(target) else str(target.file)
    say(f"next: review it and replace null values; to list what is still unknown, run: hidl site check {what}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of site files, for editors."""
    from hidl_cli.inputs.load import text

    write(text("site"))


def _named(word: str) -> OverlayEntry:
    """Return the entry for ``word``: the file with this path if it looks like a path, or else the site of this name."""
    from hidl_cli.inputs.overlay import at_path, find, is_base

    path = Path(word)
    if is_base(path):
        raise UsageError(f"{word} is a base, not a site", hint="check a site that extends it")
    return at_path("site", path) if path.suffix in (".yaml", ".yml") or "/" in word else find("site", word)
