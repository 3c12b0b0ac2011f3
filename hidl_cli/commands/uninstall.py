"""``hidl uninstall``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, PrefixOption, SiteOption, complete_stacks

if TYPE_CHECKING:
    from pathlib import Path


def uninstall(
    stack: Annotated[str, typer.Argument(help="An installed stack.", autocompletion=complete_stacks)],
    *,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All installations of the stack, not only the one in use.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Remove it although runs, processes or other users may need it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove a stack's installation with its modulefile. Locks and logs stay.

    Installations that runs, processes, module collections or other users may need are removed with --force only.
    """
    import sys

    from hidl_cli.commands.progress import progress
    from hidl_cli.commands.render import emit_json, printable, write
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.pruning import Pruning
    from hidl_cli.stack.sharing import is_shared, shared
    from hidl_cli.stack.uninstall import installed
    from hidl_cli.stack.uninstall import uninstall as remove

    where = load_site(site)
    root = installation.root_of(where, stack, prefix)
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        for found in installed(root, where.name, stack, everything=everything):
            typer.echo(printable(f"{found}  {installation.size(found) / 2**20:,.0f} MiB"), err=True)
        typer.confirm("Remove?", abort=True, err=True)
    pruning = Pruning.older_than(0, where, (root,), 0.0)

    def reasons(found: Path) -> Iterator[str]:
        if force:
            return
        yield from pruning.users_of(found)
        if is_shared(where, root):
            yield "jobs of other users may run from it"

    with shared(where, root):
        removed = remove(root, where.name, stack, everything=everything, reasons=reasons, on_wait=progress().say)
    if json:
        emit_json("hidl.uninstall/1", stack=stack, site=where.name, removed=[str(path) for path in removed])
    else:
        write("".join(f"{stack}: removed {printable(str(path))}\n" for path in removed))
