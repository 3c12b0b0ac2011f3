"""``hidl workload`` and ``hidl data``: list, show and draft workloads, and generate data sets for training."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hidl_cli.commands.arguments import JsonOption, PrefixOption, SiteOption, complete_stacks, complete_workloads
from hidl_cli.commands.own_program import WithWords, WorkGrowth, given_words, program_line, refuse_source
from hidl_cli.commands.render import emit_json, say, show_table, show_workload, write
from hidl_cli.errors import UsageError
from hidl_cli.quoting import sh

app = typer.Typer(no_args_is_help=True, help="List, show and draft workloads.")


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the workloads and the origin of each."""
    from hidl_cli.api.execution import workloads
    from hidl_cli.inputs.problems import render
    from hidl_cli.store.references import find_unmatched, load_references

    rows = [asdict(workload) for workload in workloads()]
    if json:
        emit_json("hidl.workload-list/1", workloads=rows)
    else:
        show_table(rows)
    for problem in find_unmatched(load_references()):
        say(render(problem), style="yellow")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the workload.", autocompletion=complete_workloads)],
    json: JsonOption = False,
) -> None:
    """Show the parameters, the metrics and the scaling of a workload."""
    from hidl_cli.plan.checks import load_workload

    workload = load_workload(name)
    if json:
        emit_json("hidl.workload/1", workload=workload.model_dump(mode="json"))
    else:
        show_workload(workload)


@app.command(cls=WithWords)
def new(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Program: a Python file, a script or a binary.")],
    *,
    name: Annotated[str | None, typer.Option(help="Name of the workload (default: the name of the file).")] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write; - is stdout (default: your workloads)."),
    ] = None,
    stack: Annotated[
        str | None, typer.Option(help="Stack to run on (default: mpi).", autocompletion=complete_stacks)
    ] = None,
    site: SiteOption = None,
    prefix: PrefixOption = None,
    scaling: Annotated[
        WorkGrowth | None,
        typer.Option(help="Scaling: strong (same work at all sizes, the default) or weak (work grows with the size)."),
    ] = None,
    no_mpi: Annotated[bool, typer.Option("--no-mpi", help="Skip the check that all ranks form one MPI world.")] = False,
    run: Annotated[
        bool,
        typer.Option(
            "--run/--no-run", help="Run a Python program until it parses its options, to turn them into parameters."
        ),
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    json: JsonOption = False,
) -> None:
    """Draft a workload from a program. The program's arguments follow after --."""
    from hidl_cli.plan.draft import SECONDS, draft_workload, may_read_options, read_options
    from hidl_cli.plan.program import STACK, stem_of
    from hidl_cli.site import draft as drafting
    from hidl_cli.site.load import load_site
    from hidl_cli.stack import installation

    given, program = given_words(ctx), Path(file)
    refuse_source(file)
    reads_options = may_read_options(program)
    command = program_line(file)
    target = drafting.target(name, output, stem_of(command), kind="workload")
    drafting.require_free(target, force=force)
    options = None
    if run and reads_options:
        machine = load_site(site)
        installed = installation.find(
            machine, stack or STACK, root=installation.root_of(machine, stack or STACK, prefix)
        )
        say(f"running {file} until it parses its options, for at most {SECONDS:.0f} s (skip this with --no-run)")
        options = read_options(program, given, installed)
    draft = draft_workload(
        target.name,
        command,
        given,
        options,
        directory=str(Path.cwd()),
        stack=stack,
        scaling=scaling.value if scaling else None,
        uses_mpi=not no_mpi,
    )
    if target.file is not None:
        drafting.write(draft, target.file)
    if json:
        path = None if target.file is None else str(target.file)
        emit_json("hidl.workload-new/1", name=target.name, file=path, text=draft.text, remarks=draft.remarks)
        return
    for remark in draft.remarks:
        say(remark)
    if target.file is None:
        write(draft.text)
        return
    say(f"drafted {target.file}")
    say(f"next: hidl run {target.name if drafting.is_found(target) else target.file}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of workload files, for editors."""
    from hidl_cli.inputs.load import text

    write(text("workload"))


data_app = typer.Typer(no_args_is_help=True, help="Make data sets for trainings.")


class DataKind(str, Enum):
    """Kinds of samples."""

    images = "images"
    tokens = "tokens"


@data_app.callback()
def _data() -> None:
    """Keep ``make`` a subcommand; typer would run a single command without its name."""


@data_app.command("make")
def make_data(
    kind: Annotated[DataKind, typer.Argument(help="Kind of samples.")],
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Directory for the archives.")],
    *,
    samples: Annotated[int, typer.Option(min=1, help="Number of images, or of tokens.")] = 1024,
    shards: Annotated[int, typer.Option(min=1, help="Number of archives.")] = 4,
    image_size: Annotated[int, typer.Option(min=1, help="Height and width of an image in pixels.")] = 64,
    classes: Annotated[int, typer.Option(min=1, help="Number of classes of the images.")] = 10,
    vocabulary: Annotated[int, typer.Option(min=2, help="Number of different tokens.")] = 50257,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    json: JsonOption = False,
) -> None:
    """Make a data set that only depends on the options, for --set data=DIR of a training."""
    from hidl_workloads import archives

    target = Path(directory).absolute()
    if target.exists() and (not target.is_dir() or any(target.glob("*.tar")) or any(target.glob("*.npy"))):
        raise UsageError(f"data set {directory} already exists", hint="choose another directory, or remove this one")
    if kind is DataKind.images:
        made = archives.make_images(target, samples=samples, side=image_size, classes=classes, shards=shards, seed=seed)
    else:
        made = archives.make_tokens(target, tokens=samples, vocabulary=vocabulary, shards=shards, seed=seed)
    if json:
        emit_json("hidl.data/1", kind=kind.value, directory=str(target), files=[str(file) for file in made])
        return
    workload = {"images": "image-training", "tokens": "gpt"}[kind.value]
    say(f"made {len(made)} archive(s), {sum(file.stat().st_size for file in made) / 1e6:.1f} MB")
    say(f"next: hidl run {workload} --set {sh(f'data={target}')}")
