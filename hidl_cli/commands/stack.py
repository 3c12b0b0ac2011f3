"""``hidl stack``: list, lock, fetch, verify and use stacks."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hidl_cli.commands.arguments import (
    JsonOption,
    OfflineOption,
    PrefixOption,
    ProviderOption,
    SiteOption,
    SpackOption,
    SpecOption,
    StackDeviceOption,
    complete_stacks,
    directory,
    provider_name,
)
from hidl_cli.commands.completion import complete_ids
from hidl_cli.commands.render import emit_json, printable, progress, say, show_table, write
from hidl_cli.errors import ExitCode, MissingPrecondition, UsageError
from hidl_cli.quoting import sh
from hidl_cli.stack import PORTABLE_PLATFORMS

if TYPE_CHECKING:
    from hidl_cli.site.schema import ProviderName, Site
    from hidl_cli.stack.installation import Installation, Switch
    from hidl_cli.stack.lock import Choice, Locked
    from hidl_cli.stack.schema import Stack
    from hidl_cli.stack.target import Target


app = typer.Typer(no_args_is_help=True, help="Manage stacks.")

#: Longest list of files in a message.
_MOST_NAMES = 10

StackArgument = Annotated[str, typer.Argument(help="Name of the stack.", autocompletion=complete_stacks)]


@app.command("list")
def list_(site: SiteOption = None, prefix: PrefixOption = None, json: JsonOption = False) -> None:
    """List the stacks and their installations."""
    from hidl_cli.api.execution import stacks
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation

    where = load_site(site)
    root = installation.installation_root(where, prefix)
    documents = [asdict(stack) for stack in stacks(site, prefix=prefix)]
    if json:
        emit_json("hidl.stack-list/1", site=where.name, root=str(root), stacks=documents)
        return
    show_table(
        [
            {
                "stack": document["name"],
                "title": document["title"],
                "from": document["origin"],
                "installed": "\n".join(_format_installation(found) for found in document["installations"]),
            }
            for document in documents
        ]
    )


@app.command()
def show(
    name: StackArgument,
    *,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    provider: ProviderOption = None,
    device: StackDeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Show a stack: its recipe with everything that it extends, its lockfile and its installations."""
    from hidl_cli.api.execution import summarize_installation
    from hidl_cli.api.software import for_device
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.checks import load_stack
    from hidl_cli.stack.schema import bare, name_of
    from hidl_cli.stack.target import detect
    from hidl_workloads.kernels import CHECK

    where, stack = for_device(load_site(site), device), load_stack(name)
    root = installation.installation_root(where, prefix)
    target = detect(where, stack)
    installations = [
        found
        for place in installation.roots(where, prefix)
        for found in installation.list_all(place)
        if (found.manifest["site"], found.prefix.parent.name) == (where.name, name)
    ]
    installed = [summarize_installation(found) for found in installations]
    used = next((found.manifest["provider"] for found in installations if found.is_current), None)
    chosen = provider_name(provider) or provider_name(used) or where.install.provider
    choice = _choose_lock(where, stack, target, root, chosen)
    passed_over = [{"file": str(other.file), "reason": other.reason} for other in choice.passed_over]
    locked = {package.name: package.version for package in choice.lock.packages} if choice.lock else None
    if json:
        document = {"file": str(choice.file), "digest": choice.lock.digest, "packages": locked} if choice.lock else None
        document = document and {**document, "provider": chosen}
        emit_json(
            "hidl.stack/1",
            stack=stack.model_dump(mode="json"),
            lock=document,
            passed_over=passed_over,
            installations=installed,
        )
        return
    facts = [("stack", f"{stack.name}: {stack.title}"), ("MPI", stack.mpi)]
    facts += [("computes on", ", ".join(stack.devices))]
    here = stack.on(target.accelerator, target.machine)
    facts += [("verified by importing", ", ".join(here.verify.imports))] if here.verify.imports else []
    facts += [("verified by", ", ".join(stack.verify.modules))] if stack.verify.modules else []
    facts += [("built", f"{build.name} {build.version}, from {build.source.file}") for build in stack.builds]
    facts += [(advisory.id, " ".join(filter(None, (advisory.text, advisory.url)))) for advisory in stack.advisories]
    facts += [("lock", str(choice.file) if choice.file else "none fits; the next installation creates one")]
    facts += [("not used", f"{other['file']}: {other['reason']}") for other in passed_over]
    for found in installed:
        facts += [("installed", _format_installation(found)), ("verified", _format_verification(found["verification"]))]
        checks = found["verification"]["checks"] or ()
        facts += [(check["name"], check["detail"]) for check in checks if check["name"] == CHECK]
    show_table([{"": fact, " ": value} for fact, value in facts])
    if chosen == "spack" and stack.spack:
        specs = {name_of(spec): spec for spec in stack.spack.specs}
        rows = [(each, specs.get(each, ""), version) for each, version in (locked or dict.fromkeys(specs)).items()]
    else:
        rows = [(package, spec or "any", (locked or {}).get(package)) for package, spec in here.packages.items()]
        rows += [(name_of(text), bare(text), (locked or {}).get(name_of(text))) for text in here.requirements]
    show_table([{"package": package, "requested": spec, "locked": version} for package, spec, version in rows])


def _choose_lock(site: Site, stack: Stack, target: Target, root: Path, provider: ProviderName) -> Choice:
    """Return the lockfile that an installation by this provider would use."""
    from hidl_cli.site import completion
    from hidl_cli.stack.lock import Choice
    from hidl_cli.stack.order import Order
    from hidl_cli.stack.providers import provider_for

    completed = completion.complete(site, provider, keep=False, say=lambda _: None).site
    try:
        return provider_for(completed, provider).choose(Order(completed, stack, root, provider=provider), target)
    except MissingPrecondition as error:  # without Spack, a lockfile cannot be checked
        say(f"lockfiles cannot be compared: {error.message}")
        return Choice(None, None, ())


@app.command()
def lock(
    name: StackArgument,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only check whether a lockfile fits; the exit code is 4 if not.")
    ] = False,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    offline: OfflineOption = False,
    provider: ProviderOption = None,
    spack: SpackOption = None,
    spec: SpecOption = None,
    device: StackDeviceOption = None,
    platform: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(PORTABLE_PLATFORMS),
            help="Lock wheels for another platform.",
            autocompletion=lambda: list(PORTABLE_PLATFORMS),
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Lock a stack to the newest versions that its recipe allows, and print the lockfile's path."""
    from hidl_cli.api.software import for_device, with_specs
    from hidl_cli.site import completion
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.checks import load_stack
    from hidl_cli.stack.install import make_lock, plan_install
    from hidl_cli.stack.order import Order

    if platform not in (None, *PORTABLE_PLATFORMS):
        raise UsageError(f"invalid --platform {platform!r}: must be {' or '.join(PORTABLE_PLATFORMS)}")
    where = for_device(
        completion.complete(load_site(site), provider_name(provider), keep=not check, say=say).site, device
    )
    by_spack = (provider_name(provider) or where.install.provider) == "spack"
    order = Order(
        where,
        with_specs(load_stack(name), spec or (), by_spack=by_spack),
        installation.installation_root(where, prefix),
        locked=check,
        offline=offline,
        provider=provider_name(provider),
        spack=directory(spack),
        platform=platform,
    )
    before = plan_install(order).choice
    file, changes = before.file, list[str]()
    if not check:
        new, file = make_lock(order, progress())
        changes = _changes(before.lock, new)
        used = plan_install(order).choice.file
        if used != file:
            progress().say(f"{used} takes precedence and will be used")
    if json:
        emit_json("hidl.stack-lock/1", stack=name, file=str(file), changes=changes)
        return
    for change in changes:
        progress().say(change)
    write(f"{file}\n")


@app.command()
def fetch(
    name: StackArgument,
    *,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Directory to fill; existing files are kept.")],
    site: SiteOption = None,
    prefix: PrefixOption = None,
    provider: ProviderOption = None,
    spack: SpackOption = None,
    device: StackDeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Download everything needed to install a stack on a machine without network access.

    To install it there, run: hidl install STACK --offline --mirror DIR
    """
    from hidl_cli.api.software import for_device
    from hidl_cli.site import completion
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.checks import load_stack
    from hidl_cli.stack.order import Order
    from hidl_cli.stack.transfer import fetch as bring

    where = for_device(completion.complete(load_site(site), provider_name(provider), keep=True, say=say).site, device)
    place = directory(to)
    assert place is not None
    order = Order(
        where,
        load_stack(name),
        installation.installation_root(where, prefix),
        provider=provider_name(provider),
        spack=directory(spack),
    )
    plan = bring(order, place, progress())
    packages = {package.name: package.version for package in plan.lock.packages}
    if json:
        emit_json("hidl.stack-fetch/1", stack=name, site=where.name, directory=str(place), packages=packages)
        return
    write(printable(f"{name}: {len(packages)} packages in {place}\n"))


@app.command()
def push(
    name: StackArgument,
    cache: Annotated[
        str, typer.Argument(metavar="CACHE", help="Build cache of the site (`spack.build_caches`), URL or path.")
    ],
    *,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Sign with this secret key from $SPACK_GNUPGHOME (default: unsigned)."),
    ] = None,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    spack: SpackOption = None,
    spec: SpecOption = None,
    device: StackDeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Push the packages of an installed stack to a Spack build cache.

    To install from it, run: hidl install STACK --provider spack --cache-only
    """
    from hidl_cli.api.software import for_device, with_specs
    from hidl_cli.site import completion
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.checks import load_stack
    from hidl_cli.stack.order import Order
    from hidl_cli.stack.transfer import push as bring

    where = for_device(completion.complete(load_site(site), "spack", keep=True, say=say).site, device)
    local = directory(cache) if cache not in where.spack.build_caches and ":" not in cache else None
    root = installation.installation_root(where, prefix)
    stack = with_specs(load_stack(name), spec or (), by_spack=True)
    order = Order(where, stack, root, provider="spack", spack=directory(spack))
    url, plan = bring(order, str(local or cache), progress(), key=key)
    if json:
        emit_json("hidl.stack-push/1", stack=name, site=where.name, url=url, signed=key is not None)
        return
    write(printable(f"{name}: {plan.id} pushed to {url}\n"))


@app.command()
def env(
    name: StackArgument,
    *,
    for_spack: Annotated[
        str | None,
        typer.Option(
            "--for-spack",
            metavar="DIR",
            help="Copy the environment of a stack that Spack built to DIR, and activate the copy with plain Spack.",
        ),
    ] = None,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
) -> None:
    """Print the commands that activate a stack in this shell: eval "$(hidl stack env STACK)"."""
    from hidl_cli.stack.installation import UNSET, variables

    found = _find(name, site, prefix)
    if place := directory(for_spack):
        from hidl_cli.stack.providers.spack.caches import export_environment

        write(export_environment(found, place))
    elif json:
        bin_ = str(found.prefix / "bin")
        emit_json("hidl.stack-env/1", set=variables(found.prefix, name), prepend={"PATH": bin_}, unset=list(UNSET))
    else:
        write(found.activate.read_text(encoding="utf-8"))


@app.command()
def use(
    name: StackArgument,
    which: Annotated[
        str, typer.Argument(metavar="ID", help="Id of an installation, or its start.", autocompletion=complete_ids)
    ],
    site: SiteOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
) -> None:
    """Switch to another installation of a stack. Running jobs keep the one that they started with."""
    from hidl_cli.stack import installation

    where, root = _place_of(name, site, prefix)
    _show(installation.use(where, name, which, root=root, on_wait=progress().say), json=json)


@app.command()
def rollback(
    name: StackArgument, site: SiteOption = None, prefix: PrefixOption = None, json: JsonOption = False
) -> None:
    """Switch back to the previous installation of a stack; repeat to undo."""
    from hidl_cli.stack import installation

    where, root = _place_of(name, site, prefix)
    _show(installation.rollback(where, name, root=root, on_wait=progress().say), json=json)


def _show(switch: Switch, *, json: bool) -> None:

    used, before = switch.used.prefix, switch.before
    if json:
        emit_json(
            "hidl.use/1",
            stack=used.parent.name,
            site=used.parent.parent.name,
            used=used.name,
            prefix=str(used),
            before=before.name if before else None,
        )
        return
    was = "already" if before == used else f"before: {before.name}" if before else "none before"
    write(printable(f"{used.parent.name}: {used} is in use ({was})\n"))


@app.command()
def containerize(
    name: StackArgument,
    *,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="Directory to write to (default: ./STACK-image)."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="IMAGE", help="Image to start from (default: Python's official image)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    device: StackDeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Write a Dockerfile and an Apptainer definition of an image that contains the packages of a stack's lockfile."""
    from hidl_cli.api.software import for_device
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation
    from hidl_cli.stack.checks import load_stack
    from hidl_cli.stack.install import plan_install
    from hidl_cli.stack.order import Order
    from hidl_cli.stack.transfer import define_image, platform_of, write_image

    where = for_device(load_site(site), device)
    root = installation.installation_root(where, prefix)
    order = Order(where, load_stack(name), root, locked=True, platform=platform_of(where))
    planned = plan_install(order).plan
    assert planned is not None  # the lockfile is required
    definition = define_image(planned, where.wheels, base=base)
    place = Path(output or f"{name}-image")
    write_image(definition, place, force=force)
    if json:
        emit_json(
            "hidl.stack-containerize/1",
            stack=name,
            directory=str(place),
            platform=planned.target.platform,
            files=sorted(definition.files),
            notes=list(definition.notes),
        )
        return
    for note in definition.notes:
        say(note)
    say(f"wrote {', '.join(sorted(definition.files))} and wheels/ for {planned.target.platform} to {place}")
    where_to = sh(str(place))
    say(f"next: docker build -t {name} {where_to}, or cd {where_to} && apptainer build {name}.sif {name}.def")


@app.command("exec")
def exec_(
    name: StackArgument,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Program and its arguments.")],
    site: SiteOption = None,
    prefix: PrefixOption = None,
) -> None:
    """Replace this process with a command in a stack's environment."""
    import shutil

    from hidl_cli import process

    program = command[1:] if command[0] == "--" else command
    environment = _find(name, site, prefix).environment(os.environ)
    if not program or shutil.which(program[0], path=environment["PATH"]) is None:
        raise UsageError(f"program {' '.join(program[:1])!r} not found in stack {name} or on PATH")
    process.replace_with(program, env=environment)


def _find(name: str, site: str | None, prefix: str | None) -> Installation:
    from hidl_cli.inputs.overlay import find
    from hidl_cli.stack import installation

    find("stack", name)
    where, root = _place_of(name, site, prefix)
    return installation.find(where, name, root=root)


def _place_of(name: str, site: str | None, prefix: str | None) -> tuple[Site, Path]:
    """Return the site, and the root directory of a stack's installations there."""
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation

    where = load_site(site)
    return where, installation.root_of(where, name, prefix)


def _selected(
    site: str | None, prefix: str | None, names: list[str] | None, *, every: bool = False
) -> tuple[Site, list[Installation]]:
    """Return the site, and its installations of the named stacks (default: all stacks)."""
    from hidl_cli.site.load import load_site
    from hidl_cli.stack.target import select_installations

    where = load_site(site)
    return where, select_installations(where, prefix, names or [], every=every)


def _format_installation(found: dict[str, Any]) -> str:
    mark = "" if found["current"] else " (not in use)"
    return f"{found['prefix']}  {found['bytes'] / 2**20:,.0f} MiB{mark}"


def _format_verification(verification: dict[str, Any]) -> str:
    """Describe where, in which job and with which MPI library an installation was verified."""
    if verification["where"] == "skip":
        return "never (--verify skip)"
    job = f", in job {verification['job']}" if verification["job"] else ""
    mpi = verification["mpi"] or {}
    library = f" with {mpi['name']} ({mpi['family']} {mpi['version'] or 'of unknown version'})" if mpi else ""
    return f"on {verification['host'] or 'this machine'}{job}{library}"


def _changes(before: Locked | None, now: Locked) -> list[str]:
    """Return the differences between the new lockfile and the one used so far."""
    old = {package.name: package.version for package in before.packages} if before else {}
    new = {package.name: package.version for package in now.packages}
    words = {name: (old.get(name, "new"), new.get(name, "gone")) for name in sorted(old | new)}
    return [f"{name}: {was} -> {is_}" for name, (was, is_) in words.items() if was != is_] if before else []


# ``hidl stack verify``, ``hidl stack sbom`` and ``hidl stack audit``.


@app.command()
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STACK]...", help="Stacks (default: all in use).", autocompletion=complete_stacks),
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Include installations that are not in use.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Replace damaged or missing files from the cache or the index.")
    ] = False,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    offline: OfflineOption = False,
    json: JsonOption = False,
) -> None:
    """Check every file of installed stacks for changes; the exit code is 4 if there are any."""
    from hidl_cli.stack.inspection import inspect

    where, installations = _selected(site, prefix, names, every=every)
    inspected = [inspect(found, where, progress(), repair=repair, offline=offline) for found in installations]
    if json:
        emit_json("hidl.stack-verify/1", site=where.name, installations=[each.to_json() for each in inspected])
    else:
        show_table([each.row for each in inspected])
        for each in inspected:
            for line in each.lines:
                say(line)
    if not all(each.now.is_whole for each in inspected):
        raise typer.Exit(ExitCode.MISSING_PRECONDITION)


@app.command()
def sbom(
    name: StackArgument,
    id_: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="Id of an installation, or its start (default: the one in use).",
            autocompletion=complete_ids,
        ),
    ] = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write (default: stdout).")
    ] = None,
    site: SiteOption = None,
    prefix: PrefixOption = None,
) -> None:
    """Print the software bill of materials of an installation (CycloneDX 1.6, JSON)."""
    from hidl_cli.documents import write_output
    from hidl_cli.inventory import cyclonedx, is_bill
    from hidl_cli.stack import installation

    if id_:
        where, root = _place_of(name, site, prefix)
        found = installation.choose(where, name, id_, root=root)
    else:
        found = _selected(site, prefix, [name])[1][0]
    text = cyclonedx(found)
    if output is None:
        write(text)
        return
    try:
        write_output(output, text.encode(), is_bill)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from error
    say(f"wrote the bill of materials of {name} to {output}")


@app.command()
def audit(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STACK]...", help="Stacks (default: all in use).", autocompletion=complete_stacks),
    ] = None,
    *,
    advisories: Annotated[
        list[Path] | None,
        typer.Option(
            "--advisories",
            metavar="FILE",
            help="Advisories in OSV format: a JSON or YAML file, a zip or tar archive, or a directory; repeatable.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="ID", help="Ignore this advisory; repeatable.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Include installations that are not in use.")] = False,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    json: JsonOption = False,
) -> None:
    """Check installed stacks for published vulnerabilities, offline.

    The exit code is 4 if there are any, and 11 if there may be some, because advisories were not read or do not
    determine which versions are affected.
    """
    from hidl_cli.inventory import audit as find_vulnerabilities

    where, installations = _selected(site, prefix, names, every=every)
    result = find_vulnerabilities(installations, advisories or [], ignore or [])
    found = list(zip(installations, result.found, strict=True))
    if json:
        documents = [
            {
                "stack": each.prefix.parent.name,
                "prefix": str(each.prefix),
                "current": each.is_current,
                "vulnerabilities": [one.to_json() for one in known if not one.undecided],
                "undecided": [one.to_json() for one in known if one.undecided],
            }
            for each, known in found
        ]
        emit_json("hidl.stack-audit/1", site=where.name, installations=documents, unread=list(result.unread))
    else:
        for each, known in found:
            for one in known:
                rated = f", {one.severity}" if one.severity else ""
                write(printable(f"{one.id}{rated}: {one.package} {one.version} of {each.prefix.parent.name}\n"))
                write(printable(f"  what: {one.text}\n"))
                label = "ignored" if one.handled else "undecided" if one.undecided else "fix"
                write(printable(f"  {label}: {one.handled or one.advice}\n"))
        for name in result.unread[:_MOST_NAMES]:
            say(f"not read: {printable(name)}", style="yellow")
        more = f", {result.undecided} undecided" if result.undecided else ""
        more += f"; {len(result.unread)} file(s) were not read" if result.unread else ""
        count = f"{result.counted}" if result.is_complete else f"at least {result.counted}"
        say(f"{len(found)} installation(s), {count} known vulnerabilities to fix{more}")
    if result.counted:
        raise typer.Exit(ExitCode.MISSING_PRECONDITION)
    if not result.is_complete:
        raise typer.Exit(ExitCode.INCONCLUSIVE)
