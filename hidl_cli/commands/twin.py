"""``hidl cluster``: run a real Slurm on this machine; ``hidl rehearse``: try a site on its twin, a local copy."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, complete_sites
from hidl_cli.commands.render import emit_json, printable, say, show_table, write
from hidl_cli.errors import UsageError
from hidl_cli.quoting import sh
from hidl_cli.redaction import shown

if TYPE_CHECKING:
    from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hidl_cli.commands.arguments import complete_stacks, complete_workloads

if TYPE_CHECKING:
    from hidl_twin.rehearsal import Rehearsal, Stage


app = typer.Typer(
    no_args_is_help=True, help="Run a real Slurm or the twin of a site on this machine, to try job scripts."
)

DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory", metavar="DIR", help="Directory of the cluster (default: cluster in hidl's state directory)."
    ),
]
LikeOption = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="SITE",
        help="Create a twin of this site: its partitions, limits, host names, modules and launchers.",
        autocompletion=complete_sites,
    ),
]


@app.command()
def up(
    *,
    like: LikeOption = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            help="Number of nodes, at most 64; for a twin, the number of each type (default: as before, or 4).",
        ),
    ] = None,
    cpus_per_node: Annotated[
        int | None,
        typer.Option(
            "--cpus-per-node", help="CPUs per node that Slurm sees (default: as before, or this machine's cores)."
        ),
    ] = None,
    accounting: Annotated[
        bool | None,
        typer.Option("--accounting/--no-accounting", help="Run slurmdbd and MariaDB (default: as before, or yes)."),
    ] = None,
    enforce_limits: Annotated[
        bool | None,
        typer.Option(
            "--enforce-limits/--no-enforce-limits",
            help="Reject jobs that exceed a partition's limits, instead of leaving them pending "
            "(default: as before, or reject).",
        ),
    ] = None,
    share: Annotated[
        list[Path] | None,
        typer.Option("--share", metavar="DIR", help="Directory below /tmp to share with the nodes; repeatable."),
    ] = None,
    directory: DirectoryOption = None,
    json: JsonOption = False,
) -> None:
    """Start the cluster (munge, MariaDB, slurmdbd, slurmctld, and nodes with slurmd), or restart what has died."""
    from hidl_twin.cluster import Cluster, shared
    from hidl_twin.settings import MAX_NODES

    report = _timed_reporter()
    cluster = Cluster(directory, report, like=like)
    settings = cluster.up(
        like=like,
        nodes=nodes,
        cpus_per_node=cpus_per_node,
        accounting=accounting,
        enforce_limits=enforce_limits,
        shares=shared(share) if share else None,
    )
    limit = "" if like else f" (at most {MAX_NODES}, tested on 2 cores)"
    report(f"{len(cluster.dress.hosts)} nodes are ready{limit}")
    if json:
        emit_json("hidl.cluster-status/1", **cluster.status())
        return
    if like:
        where = f" --directory {sh(str(directory))}" if directory else ""
        say(printable(f"next: hidl cluster login --like {sh(like)}{where}   # opens a shell on {cluster.dress.login}"))
        return
    lines = [f'eval "$(hidl cluster env --directory {sh(str(directory))})"'] if directory else []
    lines += ["hidl install mpi --site test-cluster"]
    lines += [f"hidl run mpi-sanity --site test-cluster --nodes {settings.nodes}"]
    say(printable("next: " + "\n      ".join(lines)))


@app.command()
def down(
    *,
    purge: Annotated[bool, typer.Option("--purge", help="Also remove its files and job history.")] = False,
    like: LikeOption = None,
    directory: DirectoryOption = None,
) -> None:
    """Stop the cluster and its jobs; the job history is kept."""
    from hidl_twin import marks
    from hidl_twin.cluster import Cluster
    from hidl_twin.layout import option_for

    report = _timed_reporter()
    Cluster(directory, report, like=like).down(purge=purge)
    report("the cluster is down")
    if directory is None and like is None:
        for other in marks.directories():
            say(
                printable(
                    f"another cluster is up in {other}; to stop it, run: hidl cluster down {option_for(Path(other))}"
                )
            )


@app.command()
def status(*, like: LikeOption = None, directory: DirectoryOption = None, json: JsonOption = False) -> None:
    """Show the cluster's daemons and nodes."""
    from hidl_twin.cluster import Cluster

    found = Cluster(directory, like=like).status()
    if json:
        emit_json("hidl.cluster-status/1", **found)
        return
    for name in (name for name in found if name.endswith(("_conf", "_envdir", "_file", "_uri"))):
        if found[name] is not None:
            say(f"{name.upper()}={found[name]}")
    show_table([{key: _word(value) for key, value in daemon.items()} for daemon in found["daemons"]])
    show_table([{key: _word(value) for key, value in node.items()} for node in found["nodes"]])
    for ignored in found["ignored"]:
        say(printable(f"warning: ignored {ignored}"))
    for title, key in (("same as on the site", "true"), ("different from the site", "not_true")):
        if key in found:
            say("\n".join([f"{title}:", *(f"  {statement}" for statement in found[key])]))


@app.command()
def env(*, like: LikeOption = None, directory: DirectoryOption = None) -> None:
    """Print the variables with which Slurm's commands use the cluster: eval "$(hidl cluster env)"."""
    from hidl_twin.cluster import Cluster

    write(Cluster(directory, like=like).environment_lines)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def login(
    context: typer.Context,
    *,
    like: LikeOption = None,
    directory: DirectoryOption = None,
) -> None:
    """Open a shell on the login host of a twin, or run a command there: hidl cluster login --like SITE -- COMMAND ...

    The twin has a configuration, installations and runs of its own.
    """
    from hidl_twin.cluster import Cluster

    from hidl_cli import process

    shell = os.environ.get("SHELL") or "/bin/bash"
    twin = Cluster(directory, like=like)
    argv, environment = twin.at_login(context.args or [shell], twin.users.environment())
    process.replace_with(argv, env=environment)


def _word(value: object) -> object:
    return {True: "up", False: "down"}[value] if isinstance(value, bool) else value


def _timed_reporter() -> Callable[[str], None]:
    """Return a function that prints lines to stderr, prefixed with the number of seconds since this call."""
    import time

    began = time.monotonic()
    return lambda text: say(f"[{time.monotonic() - began:6.2f} s] {text}")


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
    tag: Annotated[str, typer.Option(help="Validate with the checks that have this tag.")] = "smoke",
    check: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only checks with this name; repeatable.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the twin running, and keep the software installed on it.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Markdown page, or update the sites' rows in it.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Dry-run a site on a local twin: start it, install, run and validate, then stop it.

    The exit code is that of the first step that fails.
    """
    from hidl_twin.page import is_page, page
    from hidl_twin.rehearsal import Script, can_be_rehearsed
    from hidl_twin.rehearsal import rehearse as carry_out

    from hidl_cli.documents import check_output, write_output
    from hidl_cli.inputs.overlay import list_all
    from hidl_cli.site.load import load_site

    if bool(sites) == all_sites:
        raise UsageError("expected either sites or --all", hint="to list the runnable sites, run: hidl site list")
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
        raise UsageError(
            f"site {name} cannot be rehearsed: {reason}", hint="to list the runnable sites, run: hidl site list"
        )
    found: list[Rehearsal] = []
    if report is not None:
        try:
            check_output(report, is_page)
        except OSError as error:
            hint = "write to another file with --report FILE"
            raise UsageError(f"cannot write {report}: {error.strerror}", hint=hint) from error
    left_out = {name: reason for name, reason in reasons.items() if reason is not None}
    for name in (name for name, reason in reasons.items() if reason is None):
        say(f"{name}: {_clock()}")
        rehearsal = carry_out(name, script, lambda text: None, _tell_step, keep=keep)
        found.append(rehearsal)
        if report is not None:  # updated after every site, because many sites take hours
            before = report.read_text(encoding="utf-8") if report.is_file() else ""
            write_output(report, shown(page(found, left_out, ["hidl", *sys.argv[1:]], before)).encode(), is_page)
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
