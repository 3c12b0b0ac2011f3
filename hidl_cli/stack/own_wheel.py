"""Build wheels of hidl's own distributions from the source of the running version."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import paths
from hidl_cli.errors import BuildFailed, HidlError, ProcessFailed

_COMPILED = "__pycache__"


@dataclass(frozen=True)
class OwnWheel:
    """One of hidl's pure Python distributions, with its source tree and its wheel.

    ``digest`` is the SHA-256 of the source files' names and contents; ``file`` may not exist yet.
    """

    name: str
    version: str
    digest: str
    source: Path
    file: Path


def workloads() -> OwnWheel:
    """Return the wheel for ``hidl_workloads``, which is next to ``hidl_cli`` in a checkout and in an installation."""
    source = Path(__file__).parents[2] / "hidl_workloads"
    return describe("hidl-workloads", source, version_file=source / "__init__.py")


def libraries() -> tuple[str, ...]:
    """Return the names of the libraries that hidl ships in ``libs/<name>``."""
    return tuple(sorted(file.parent.name for file in (paths.shipped() / "libs").glob("*/pyproject.toml")))


def library(name: str) -> OwnWheel:
    """Return the wheel for a library in ``libs/<name>/<name>``. Raises ``HidlError`` if its sources are incomplete."""
    source = paths.shipped() / "libs" / name
    return describe(name, source, version_file=source / name / "__init__.py")


def describe(name: str, source: Path, *, version_file: Path) -> OwnWheel:
    """Describe a distribution's wheel without building it.

    Args:
        name: Name of the distribution.
        source: Directory of the source tree.
        version_file: File with the line ``__version__ = "..."``.

    Raises:
        HidlError: The source tree is incomplete.
    """
    try:
        version = re.search(r'^__version__ = "([^"]+)"$', version_file.read_text(encoding="utf-8"), re.MULTILINE)
        digest = _digest(source)
    except OSError as error:
        raise HidlError(f"hidl is incomplete: {error}", hint="reinstall hidl") from error
    if version is None or not (source / "pyproject.toml").is_file():
        raise HidlError(f"hidl is incomplete: {source} cannot be built as a wheel", hint="reinstall hidl")
    filename = f"{name.replace('-', '_')}-{version[1]}-py3-none-any.whl"
    return OwnWheel(name, version[1], digest, source, paths.user_cache() / "wheels" / digest[:16] / filename)


def build(wheel: OwnWheel) -> None:
    """Build the wheel if it is missing. The build runs offline in a copy of the sources, with hidl's own interpreter.

    Raises ``BuildFailed`` if the build fails.
    """
    if wheel.file.is_file():
        return
    from hidl_cli import process  # only needed for the first build

    wheel.file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheel.file.parent) as directory:
        copy, out = Path(directory, "source"), Path(directory, "out")
        shutil.copytree(wheel.source, copy, ignore=shutil.ignore_patterns(_COMPILED))
        try:
            process.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out], cwd=copy)
        except ProcessFailed as failure:
            raise BuildFailed(f"failed to build the {wheel.name} wheel: {failure.output.strip()}") from failure
        (out / wheel.file.name).replace(wheel.file)


def _digest(source: Path) -> str:
    """Return the SHA-256 of the names and contents of the files below ``source``, except compiled files."""
    total = hashlib.sha256()
    files = []
    for directory, below, names in os.walk(source):
        below[:] = [name for name in below if name != _COMPILED]
        files += [Path(directory, name) for name in names]
    for file in sorted(files):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{file.relative_to(source).as_posix()}\0{content}\n".encode())
    return total.hexdigest()
