"""Definitions of container images that contain a stack exactly as its lockfile says."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import documents
from hidl_cli.errors import HidlError, UsageError
from hidl_cli.quoting import sh_line
from hidl_cli.stack import own_wheel
from hidl_cli.stack.installation import variables
from hidl_cli.stack.own_wheel import OwnWheel
from hidl_cli.stack.plan import InstallPlan
from hidl_cli.templates import render_script

_ROOT = Path("/opt/hidl")
_PYTHON = re.compile(r"cp(\d)(\d+)")
#: Version suffix of torch from one of PyTorch's own indexes, each of which contains a single build.
_BUILD_OF_TORCH = re.compile(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)")
_TORCH_INDEX = "https://download.pytorch.org/whl"
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


@dataclass(frozen=True)
class ImageDefinition:
    """The files from which an image is built, by name, and the wheels of hidl's own distributions."""

    files: Mapping[str, str]
    wheels: tuple[OwnWheel, ...]


def define_image(plan: InstallPlan, *, base: str | None = None) -> ImageDefinition:
    """Return the definitions of an image that contains a stack.

    Args:
        plan: The plan of an installation from wheels.
        base: The image to start from, which has the Python of the lockfile; None selects Python's official image.

    Raises:
        UsageError: The stack consists of more than wheels, or the base is not the name of an image.
    """
    if plan.provider != "wheels":
        raise UsageError(
            f"stack {plan.stack} is not installed from wheels, but by {plan.provider}",
            hint="use --provider wheels, or `spack containerize` in the stack's Spack environment",
        )
    if missing := [build.recipe.name for build in plan.builds] + list(plan.extra.references):
        raise UsageError(
            f"stack {plan.stack} contains {', '.join(missing)}, which hidl builds from source",
            hint="choose a stack that contains only wheels, or run pip install hidl and hidl install in the image",
        )
    version = _PYTHON.fullmatch(plan.target.python)
    if base is None and version is None:
        raise UsageError(f"no official image for Python {plan.target.python}", hint="name one with --base")
    if base is not None and not _IMAGE.fullmatch(base):
        raise UsageError(f"invalid --base {base!r}", hint="use the name of an image, such as python:3.11-slim")
    name, prefix = plan.lock.filename, _ROOT / plan.stack
    values = {
        "stack": plan.stack,
        "title": plan.title,
        "lock": name,
        "base": base or (f"python:{version[1]}.{version[2]}-slim" if version else ""),
        "commands": list(_commands(plan, prefix)),
        "variables": {**variables(prefix, plan.stack), "LD_LIBRARY_PATH": str(prefix / "lib")},
        "bin": str(prefix / "bin"),
    }
    return ImageDefinition(
        {
            "Dockerfile": render_script("Dockerfile.j2", values),
            f"{plan.stack}.def": render_script("apptainer.def.j2", values),
            name: plan.lock.wheels.text(),
        },
        plan.own,
    )


def _commands(plan: InstallPlan, prefix: Path) -> Iterator[str]:
    """Yield the shell commands that install the stack in the image."""
    pip = [str(prefix / "bin" / "pip"), "install", "--no-cache-dir", "--no-deps"]
    torch = _BUILD_OF_TORCH.search(plan.lock.version("torch") or "")
    indexes = [*plan.extra.indexes, *([f"{_TORCH_INDEX}/{torch[1]}"] if torch else [])]
    yield sh_line(["python3", "-m", "venv", str(prefix)])
    links = [f"--find-links={place}" for place in plan.extra.find_links]
    extra = [f"--extra-index-url={url}" for url in indexes]
    yield sh_line([*pip, "--require-hashes", *extra, *links, "-r", str(_ROOT / "lock.txt")])
    yield sh_line([*pip, "--no-index", *(str(_ROOT / "wheels" / wheel.file.name) for wheel in plan.own)])


def write_image(definition: ImageDefinition, directory: Path, *, force: bool = False) -> None:
    """Write the files, and build the wheels, below a directory.

    Raises ``UsageError`` if a file exists already and ``force`` is not set, and ``HidlError`` if it cannot be written.
    """
    if not force and (existing := [name for name in definition.files if (directory / name).exists()]):
        raise UsageError(f"{directory / existing[0]} already exists", hint="overwrite it with --force")
    try:
        (directory / "wheels").mkdir(parents=True, exist_ok=True)
        for wheel in definition.wheels:
            own_wheel.build(wheel)
            shutil.copyfile(wheel.file, directory / "wheels" / wheel.file.name)
        for name, text in definition.files.items():
            documents.write_text(directory / name, text)
    except OSError as error:
        raise HidlError(f"{directory} cannot be written: {error.strerror}", hint="choose another --output") from error
