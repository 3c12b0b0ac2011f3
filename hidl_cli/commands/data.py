"""``hidl data``: generate data sets for training."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from hidl_cli.commands.arguments import JsonOption

app = typer.Typer(no_args_is_help=True, help="Make data sets for trainings.")


class DataKind(str, Enum):
    """Kinds of samples."""

    images = "images"
    tokens = "tokens"


@app.callback()
def _group() -> None:
    """Keep ``make`` a subcommand; typer would run a single command without its name."""


@app.command()
def make(
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
    from pathlib import Path

    from hidl_cli.commands.render import emit_json, say
    from hidl_cli.errors import UsageError
    from hidl_cli.quoting import sh
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
