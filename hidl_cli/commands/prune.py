"""``hidl prune``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, PrefixOption, SiteOption

if TYPE_CHECKING:
    from pathlib import Path

    from hidl_cli.stack.pruning import Item


def prune(
    *,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="DAYS", min=0, help="Keep what was used in the last DAYS days.")
    ] = 30,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed, and why the rest stays.")
    ] = False,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove installations, builds, logs, bisects and temporary files that nobody needs any more.

    An installation stays if it is in use or was so before, if a run under way, a process, a module collection or a file
    of hidl's names it, or if hidl install would give it again.
    """
    import sys

    from hidl_cli.commands.progress import progress
    from hidl_cli.commands.render import emit_json, printable, say
    from hidl_cli.errors import ExitCode
    from hidl_cli.launch.limits import longest_job
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.pruning import Pruning

    where = load_site(site)
    roots = installation.roots(where, prefix)
    root = roots[-1]
    pruning = Pruning.older_than(older_than, where, roots, longest_job(where))
    items = pruning.items()
    wanted = [item for item in items if item.kept is None]
    if not json:
        _show(items if dry_run else wanted, root)
    if wanted and not dry_run and not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm("Remove?", abort=True, err=True)
    removed, failed = [], []
    for item in wanted if not dry_run else []:
        try:
            kept = pruning.remove(item, progress().say)
        except OSError as error:
            failed.append(f"{item.path}: {error.strerror or error}")
            continue
        if kept is None:
            removed.append(item)
        else:
            say(printable(f"{item.path} stays: {kept}"))
    if json:
        emit_json(
            "hidl.prune/1",
            site=where.name,
            root=str(root),
            roots=[str(place) for place in roots],
            older_than_days=older_than,
            dry_run=dry_run,
            items=[{**item.to_json(), "removed": item in removed} for item in items],
            bytes=sum(item.size for item in (wanted if dry_run else removed)),
        )
    else:
        what = "would be removed" if dry_run else "removed"
        counted = wanted if dry_run else removed
        say(f"{what}: {len(counted)}, {sum(item.size for item in counted) / 2**20:,.0f} MiB")
    for line in failed:
        say(printable(f"not removed: {line}"))
    if failed:
        raise typer.Exit(ExitCode.MISSING_PRECONDITION)


def _show(items: list[Item], root: Path) -> None:
    from datetime import datetime

    from hidl_cli.commands.tables import show_table

    show_table(
        [
            {
                "what": item.kind,
                "where": item.path.relative_to(root) if item.path.is_relative_to(root) else item.path,
                "MiB": f"{item.size / 2**20:,.0f}",
                "last used": f"{datetime.fromtimestamp(item.used).astimezone():%Y-%m-%d}",
                "kept": item.kept or "",
            }
            for item in items
        ]
    )
