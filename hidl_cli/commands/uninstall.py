"""``hidl uninstall``."""

from __future__ import annotations

from typing import Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, PrefixOption, SiteOption, complete_stacks


def uninstall(
    stack: Annotated[str, typer.Argument(help="An installed stack.", autocompletion=complete_stacks)],
    *,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All installations of the stack, not only the one in use.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove a stack's installation with its modulefile. Locks and logs stay."""
    import sys

    from hidl_cli.commands.progress import progress
    from hidl_cli.commands.render import emit_json, printable, write
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.sharing import shared
    from hidl_cli.stack.uninstall import installed
    from hidl_cli.stack.uninstall import uninstall as remove

    where = load_site(site)
    root = installation.root_of(where, stack, prefix)
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        for found in installed(root, where.name, stack, everything=everything):
            typer.echo(printable(f"{found}  {installation.size(found) / 2**20:,.0f} MiB"), err=True)
        typer.confirm("Remove?", abort=True, err=True)
    with shared(where, root):
        removed = remove(root, where.name, stack, everything=everything, on_wait=progress().say)
    if json:
        emit_json("hidl.uninstall/1", stack=stack, site=where.name, removed=[str(path) for path in removed])
    else:
        write("".join(f"{stack}: removed {printable(str(path))}\n" for path in removed))
