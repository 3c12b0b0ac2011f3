"""``hidl config``: show the files and plug-ins that hidl uses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hidl_cli.commands.arguments import JsonOption

app = typer.Typer(no_args_is_help=True, help="Show the files and plug-ins that hidl uses.")


@app.callback()
def _config() -> None:
    pass


@app.command()
def show(
    origin: Annotated[
        bool, typer.Option("--origin", help="Also show each file, and the files that it shadows.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show all sites, stacks and workloads, and whether each comes from the user, from /etc/hidl or from hidl."""
    from typing import get_args

    from hidl_cli import paths
    from hidl_cli.commands.render import emit_json, say, show_table
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


@app.command()
def plugins(json: JsonOption = False) -> None:
    """Show the plug-ins of installed packages and whether each can be loaded."""
    from hidl_cli.commands.render import emit_json, say, show_table
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


@app.command()
def schema(
    directory: Annotated[
        Path | None, typer.Argument(help="Directory to write to (default: schema/ beside your own files).")
    ] = None,
) -> None:
    """Write the JSON Schemas of site, stack and workload files, for checks in editors."""
    from typing import get_args

    from hidl_cli import documents, paths
    from hidl_cli.commands.render import say
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
