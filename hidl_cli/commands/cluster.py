"""``hidl cluster``: a real Slurm on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import JsonOption

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(no_args_is_help=True, help="A real Slurm on this machine, to try a site or a job script on.")

DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory", metavar="DIR", help="The cluster's state (default: hidl's state directory, .../hidl/cluster)."
    ),
]


@app.command()
def up(
    *,
    nodes: Annotated[int | None, typer.Option("--nodes", help="How many nodes (default: as before, or 4).")] = None,
    cpus_per_node: Annotated[
        int | None,
        typer.Option("--cpus-per-node", help="CPUs that a node claims (default: as before, or this machine's cores)."),
    ] = None,
    accounting: Annotated[
        bool | None,
        typer.Option("--accounting/--no-accounting", help="With slurmdbd and MariaDB (default: as before, or with)."),
    ] = None,
    enforce_limits: Annotated[
        bool | None,
        typer.Option(
            "--enforce-limits/--no-enforce-limits",
            help="Refuse jobs over a partition's limits, rather than let them wait for ever "
            "(default: as before, or refuse).",
        ),
    ] = None,
    share: Annotated[
        list[Path] | None,
        typer.Option("--share", metavar="DIR", help="Show this directory on the nodes too, where it lies in /tmp."),
    ] = None,
    directory: DirectoryOption = None,
    json: JsonOption = False,
) -> None:
    """Bring the cluster up, or mend what has died of it: munge, MariaDB, slurmdbd, slurmctld, and nodes with slurmd."""
    from hidl_cli.cluster.cluster import Cluster, shared
    from hidl_cli.commands.render import emit_json, printable, say

    tell = _clock()
    cluster = Cluster(directory, tell)
    settings = cluster.up(
        nodes=nodes,
        cpus_per_node=cpus_per_node,
        accounting=accounting,
        enforce_limits=enforce_limits,
        shares=shared(share) if share else None,
    )
    tell(f"{settings.nodes} nodes are usable")
    if json:
        emit_json("hidl.cluster-status/1", **cluster.status())
        return
    evaluated = "hidl cluster env" + (f" --directory {directory}" if directory else "")
    say(printable(f'next: eval "$({evaluated})", then for example'))
    say(f"      hidl run resnet50 --site test-cluster --nodes {settings.nodes}")


@app.command()
def down(
    *,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove its directory too, with the history of its jobs.")
    ] = False,
    directory: DirectoryOption = None,
) -> None:
    """End the cluster, and the jobs on it. Its history stays, unless it is purged."""
    from hidl_cli.cluster.cluster import Cluster

    tell = _clock()
    Cluster(directory, tell).down(purge=purge)
    tell("nothing of the cluster is left running")


@app.command()
def status(*, directory: DirectoryOption = None, json: JsonOption = False) -> None:
    """Show what of the cluster lives."""
    from hidl_cli.cluster.cluster import Cluster
    from hidl_cli.commands.render import emit_json, say
    from hidl_cli.commands.tables import show_table

    found = Cluster(directory).status()
    if json:
        emit_json("hidl.cluster-status/1", **found)
        return
    say(f"SLURM_CONF={found['slurm_conf']}")
    show_table([{key: _word(value) for key, value in daemon.items()} for daemon in found["daemons"]])
    show_table([{key: _word(value) for key, value in node.items()} for node in found["nodes"]])


@app.command()
def env(*, directory: DirectoryOption = None) -> None:
    """Print what makes Slurm's commands use the cluster: eval "$(hidl cluster env)"."""
    from hidl_cli.cluster.cluster import Cluster
    from hidl_cli.commands.render import write

    write(Cluster(directory).environment_lines)


def _word(value: object) -> object:
    return {True: "up", False: "down"}[value] if isinstance(value, bool) else value


def _clock() -> Callable[[str], None]:
    """Says lines with the seconds since now before them, on stderr."""
    import time

    from hidl_cli.commands.render import say

    began = time.monotonic()
    return lambda text: say(f"[{time.monotonic() - began:6.2f} s] {text}")
