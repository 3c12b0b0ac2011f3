"""``hidl install`` and ``hidl uninstall``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hidl_cli.commands.arguments import (
    JsonOption,
    PrefixOption,
    SiteOption,
    VerboseOption,
    complete_stacks,
    with_options,
)
from hidl_cli.commands.render import emit_json, printable, progress, say, show_error, show_table, write
from hidl_cli.errors import HidlError
from hidl_cli.launch.options import InstallOptions
from hidl_cli.quoting import sh_line

if TYPE_CHECKING:
    from pathlib import Path

    from hidl_cli.site.completion import CompletedSite
    from hidl_cli.stack.install import Result, SkippedStack
    from hidl_cli.stack.order import Order


_HELP = {
    "partition": "Partition for build and verification jobs.",
    "account": "Account to charge for these jobs.",
    "qos": "Quality of service for these jobs.",
    "reservation": "Reservation for these jobs.",
    "time": "Time limit for these jobs; 10 means ten minutes.",
}


@with_options(InstallOptions, without=("nodes", "hosts", "hostfile", "share_hosts", "constraint"), help=_HELP)
def install(
    stacks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STACK...]",
            help="Stacks to install (default: those in the site file, or those used by its checks).",
            autocompletion=complete_stacks,
        ),
    ] = None,
    *,
    options: InstallOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan without installing anything.")] = False,
    verbose: VerboseOption = 0,
    json: JsonOption = False,
) -> None:
    """Install stacks. Each is locked, installed into its own prefix, verified on MPI ranks and published."""
    from hidl_cli.api.software import arrange, first_line
    from hidl_cli.stack.install import exit_code

    arranged = arrange(replace(options, stacks=stacks or ()), keep=not dry_run, say=say)
    orders, left_out, asked = arranged.orders, arranged.left_out, arranged.completed
    if dry_run:
        _dry_run(orders, asked, left_out, arranged.verification, json=json)
        return
    follower = progress()
    if len(orders) > 1:
        where = f"site {asked.site.name}, {len(orders)} stacks below {arranged.root}"
        say(f"{where}; shared packages are downloaded once, into uv's cache")
    results = []
    for result in arranged.carry_out(follower):
        results.append(result)
        if result.error is not None and len(orders) == 1 and not json:
            raise result.error
        if result.error is not None:
            say(f"{result.stack}: failed: {first_line(result.error)}", style="red")
        elif not json and len(orders) == 1:
            write(printable(_line(result)) + "\n")
    if json:
        emit_json(
            "hidl.install/1",
            installations=[result.to_json() for result in results if result.installation is not None],
            failed=[result.to_json() for result in results if result.error is not None],
            left_out=[asdict(stack) for stack in left_out],
            asked=asked.to_json(),
        )
    elif len(orders) + len(left_out) > 1:
        _show_table(results, left_out)
    if code := exit_code(results):
        raise typer.Exit(code)


def _show_table(results: Sequence[Result], left_out: Sequence[SkippedStack]) -> None:
    """Show a row for each stack: the action, and the prefix or the error."""
    from hidl_cli.api.software import first_line

    rows = [
        {
            "stack": result.stack,
            "": result.action,
            "seconds": f"{result.seconds:.1f}",
            "installation": result.installation.prefix
            if result.installation
            else first_line(result.error)
            if result.error
            else "",
        }
        for result in results
    ]
    rows += [{"stack": stack.stack, "": "left out", "seconds": "", "installation": stack.reason} for stack in left_out]
    show_table(rows, whole=("stack", "", "seconds"))
    for stack in left_out:
        if stack.hint:
            say(f"next, for {stack.stack}: {stack.hint}")
    for result in results:
        if result.error is not None and result.error.hint:
            say(f"next, for {result.stack}: {result.error.hint}")


def _line(result: Result) -> str:
    what = {
        "installed": "installed in",
        "switched": "switched to",
        "nothing to do": "nothing to do, already installed in",
    }
    assert result.installation is not None
    return f"{result.stack}: {what[result.action]} {result.installation.prefix}"


def _dry_run(
    orders: Sequence[Order], asked: CompletedSite, left_out: Sequence[SkippedStack], verified: str, *, json: bool
) -> None:
    """Print what the same command would do without ``--dry-run``."""
    from hidl_cli.stack.install import preview

    follower = progress()
    documents = [preview(order, follower, verified) for order in orders]
    if json:
        emit_json(
            "hidl.install-plan/1",
            plans=documents,
            left_out=[asdict(stack) for stack in left_out],
            asked=asked.to_json(),
        )
        _report_obstacles(documents)
        return
    for document in documents:
        lines = [f"{document['stack']}: {document['action']}"]
        lines += [f"  not used: {file['file']}: {file['reason']}" for file in document["passed_over"]]
        if document["plan"]:
            plan = document["plan"]
            lines += [f"  lock    {plan['lock']['file']}", f"  prefix  {plan['prefix']}"]
            lines += [f"  python  {plan['interpreter']} ({plan['python']}, {plan['platform']}, {plan['accelerator']})"]
            hashes, externals = plan.get("spack", {}).get("hashes", {}), plan.get("spack", {}).get("externals", {})
            for name, version in plan["packages"].items():
                origin = (
                    f" in {externals[name]}" if name in externals else f" /{hashes[name]}" if name in hashes else ""
                )
                lines.append(f"  package {name} {version}{origin}")
            lines += [f"  package {name} {own['version']} (hidl's own)" for name, own in plan["own"].items()]
            lines += [f"  note    {advisory['id']}: {advisory['text']}" for advisory in plan["advisories"]]
        lines += [f"  build   {build['name']} {build['version']}: {build['action']}" for build in document["builds"]]
        for step in document["steps"]:
            variables = [f"{name}={value}" for name, value in step["variables"].items()]
            if step["without_network"]:
                lines.append("  # tried with --offline first, which suffices if uv's cache has everything")
            lines.append("  $ " + sh_line([*(["env", *variables] if variables else []), *step["argv"]]))
        if document["steps"] and document["verified"] != "here":
            lines.append("  verify  " + ("in a job" if document["verified"] == "job" else "skipped"))
        write(printable("\n".join(lines)) + "\n")
        if document["environment"]:
            write(document["environment"])
    if len(documents) + len(left_out) > 1:
        for stack in left_out:
            write(printable(f"{stack.stack}: left out: {stack.reason}\n  next    {stack.hint}\n"))
        actions = [f"{document['stack']} ({document['action']})" for document in documents]
        write(printable(f"{len(documents)} stacks: {', '.join(actions)}\n"))
    _report_obstacles(documents)


def _report_obstacles(documents: Sequence[dict[str, Any]]) -> None:
    """Show why stacks cannot be resolved, and exit with the code of the last error."""

    obstacles = [document["obstacle"] for document in documents if document["obstacle"]]
    for obstacle in obstacles:
        show_error(HidlError(obstacle["error"], hint=obstacle["hint"]))
    if obstacles:
        raise typer.Exit(obstacles[-1]["exit_code"])


# ``hidl uninstall``.


def uninstall(
    stack: Annotated[str, typer.Argument(help="Installed stack to remove.", autocompletion=complete_stacks)],
    *,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove all installations of the stack, not only the one in use.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Remove it even if runs, processes or other users may need it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove an installation of a stack and its modulefile. Lockfiles and logs are kept.

    Installations that runs, processes, module collections or other users may need are only removed with --force.
    """
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.installation import is_shared, site_permissions
    from hidl_cli.stack.prune import Pruning, installed
    from hidl_cli.stack.prune import uninstall as remove

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
            yield "other users' jobs may use it"

    with site_permissions(where, root):
        removed = remove(root, where.name, stack, everything=everything, reasons=reasons, on_wait=progress().say)
    if json:
        emit_json("hidl.uninstall/1", stack=stack, site=where.name, removed=[str(path) for path in removed])
    else:
        write("".join(f"{stack}: removed {printable(str(path))}\n" for path in removed))
