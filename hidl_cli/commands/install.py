"""``hidl install``: plan, lock, install, verify, publish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import (
    JsonOption,
    MirrorOption,
    PrefixOption,
    ProviderOption,
    SiteOption,
    SpackOption,
    complete_stacks,
    directory,
    provider_name,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hidl_cli.stack.install import Order, Outcome

OfflineOption = Annotated[bool, typer.Option("--offline", help="Use uv's cache and local wheels only, no network.")]


def install(
    stacks: Annotated[
        list[str], typer.Argument(metavar="STACK...", help="Stacks (hidl stack list).", autocompletion=complete_stacks)
    ],
    *,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    locked: Annotated[bool, typer.Option("--locked", help="Fail where no lock fits, rather than make one.")] = False,
    offline: OfflineOption = False,
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="The archive of what is built from source; repeatable."),
    ] = None,
    provider: ProviderOption = None,
    spack: SpackOption = None,
    mirror: MirrorOption = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="How many compilers may run at once (Spack).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and touch nothing.")] = False,
    json: JsonOption = False,
) -> None:
    """Install stacks: each is locked, installed into a prefix of its own, verified on 2 MPI ranks and published."""
    from hidl_cli.commands.progress import progress
    from hidl_cli.commands.render import emit_json, printable, write
    from hidl_cli.mpi import FAMILIES
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.install import Order
    from hidl_cli.stack.install import install as carry_out
    from hidl_cli.stack.load import load_stack

    where = load_site(site)
    root = installation.root(where, prefix)
    wanted = [load_stack(name) for name in dict.fromkeys(stacks)]
    named = [build.name for stack in wanted for build in stack.builds]
    if (provider or where.install.provider) == "rpm":
        named += [*where.rpms, *where.mpi, *FAMILIES]
    sources = _sources(source or [], named)
    orders = [
        Order(
            where,
            stack,
            root,
            locked=locked,
            offline=offline,
            sources=sources,
            provider=provider_name(provider),
            spack=directory(spack),
            mirror=directory(mirror),
            jobs=jobs,
        )
        for stack in wanted
    ]
    if dry_run:
        _dry_run(orders, json=json)
        return
    outcomes = []
    follower = progress()
    for order in orders:
        outcome = carry_out(order, follower)
        outcomes.append(outcome)
        if not json:
            write(printable(_line(order.stack.name, outcome)) + "\n")
    if json:
        documents = [{**outcome.installation.manifest, "action": outcome.action} for outcome in outcomes]
        emit_json("hidl.install/1", installations=documents)


def _sources(words: list[str], builds: list[str]) -> dict[str, Path]:
    """Read ``NAME=FILE`` words; ``UsageError`` for a name that none of the stacks builds."""
    from pathlib import Path

    from hidl_cli.errors import UsageError

    found = {}
    for word in words:
        name, equals, file = word.partition("=")
        if not equals or not file or name not in builds:
            known = ", ".join(dict.fromkeys(builds)) or "these stacks build nothing from source"
            raise UsageError(f"--source {word!r} is not understood", hint=f"--source NAME=FILE, NAME one of: {known}")
        found[name] = Path(file).expanduser().absolute()
    return found


def _line(stack: str, outcome: Outcome) -> str:
    what = {
        "installed": "installed in",
        "switched": "switched to",
        "nothing to do": "nothing to do, it is installed in",
    }
    return f"{stack}: {what[outcome.action]} {outcome.installation.prefix}"


def _dry_run(orders: list[Order], *, json: bool) -> None:
    """Print the plans that the same command without ``--dry-run`` would carry out."""
    from hidl_cli.commands.progress import progress
    from hidl_cli.commands.render import emit_json, printable, write
    from hidl_cli.quoting import sh_line
    from hidl_cli.stack.install import preview

    follower = progress()
    documents = [preview(order, follower) for order in orders]
    if json:
        emit_json("hidl.install-plan/1", plans=documents)
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
                whence = (
                    f" in {externals[name]}" if name in externals else f" /{hashes[name]}" if name in hashes else ""
                )
                lines.append(f"  package {name} {version}{whence}")
            lines += [f"  package {name} {own['version']} (hidl's own)" for name, own in plan["own"].items()]
            lines += [f"  note    {advisory['id']}: {advisory['text']}" for advisory in plan["advisories"]]
        lines += [f"  build   {build['name']} {build['version']}: {build['action']}" for build in document["builds"]]
        for step in document["steps"]:
            variables = [f"{name}={value}" for name, value in step["variables"].items()]
            if step["without_network"]:
                lines.append("  # first with --offline: what uv's cache holds needs no network")
            lines.append("  $ " + sh_line([*(["env", *variables] if variables else []), *step["argv"]]))
        write(printable("\n".join(lines)) + "\n")
        if document["environment"]:
            write(document["environment"])
