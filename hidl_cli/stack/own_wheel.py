"""hidl's own distributions, built to wheels from the source trees of the hidl that runs."""

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
    """A pure Python distribution of hidl: its source tree, and the wheel that is made of it.

    ``digest`` is the SHA-256 over the names and contents of the source files; ``file`` need not be there yet.
    """

    name: str
    version: str
    digest: str
    source: Path
    file: Path


def workloads() -> OwnWheel:
    """``hidl_workloads``, which lies beside ``hidl_cli`` in a checkout as in an installed hidl."""
    source = Path(__file__).parents[2] / "hidl_workloads"
    return describe("hidl-workloads", source, version_file=source / "__init__.py")


def libraries() -> tuple[str, ...]:
    """The names of the libraries that hidl ships, each a distribution of its own in ``libs/<name>``."""
    return tuple(sorted(file.parent.name for file in (paths.shipped() / "libs").glob("*/pyproject.toml")))


def library(name: str) -> OwnWheel:
    """One of ``libraries()``; its package is ``libs/<name>/<name>``. Raises ``HidlError`` where it is not whole."""
    source = paths.shipped() / "libs" / name
    return describe(name, source, version_file=source / name / "__init__.py")


def describe(name: str, source: Path, *, version_file: Path) -> OwnWheel:
    """The wheel of the distribution ``name`` in the directory ``source``, without building it.

    ``version_file`` holds the line ``__version__ = "..."``. Raises ``HidlError`` if it is not such a source tree.
    """
    try:
        version = re.search(r'^__version__ = "([^"]+)"$', version_file.read_text(encoding="utf-8"), re.MULTILINE)
        digest = _digest(source)
    except OSError as error:
        raise HidlError(f"hidl is not whole: {error}", hint="install hidl again") from error
    if version is None or not (source / "pyproject.toml").is_file():
        raise HidlError(f"hidl is not whole: {source} cannot be built to a wheel", hint="install hidl again")
    filename = f"{name.replace('-', '_')}-{version[1]}-py3-none-any.whl"
    return OwnWheel(name, version[1], digest, source, paths.user_cache() / "wheels" / digest[:16] / filename)


def build(wheel: OwnWheel) -> None:
    """Build the wheel unless it is there: with hidl's own interpreter, no network, and from a copy of the source.

    Raises ``BuildFailed`` where that does not succeed.
    """
    if wheel.file.is_file():
        return
    from hidl_cli import process  # a wheel is built once

    wheel.file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheel.file.parent) as directory:
        copy, out = Path(directory, "source"), Path(directory, "out")
        shutil.copytree(wheel.source, copy, ignore=shutil.ignore_patterns(_COMPILED))
        try:
            process.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out], cwd=copy)
        except ProcessFailed as failure:
            raise BuildFailed(f"the wheel of {wheel.name} could not be built: {failure.output.strip()}") from failure
        (out / wheel.file.name).replace(wheel.file)


def _digest(source: Path) -> str:
    """The SHA-256 over the names and contents of the files below ``source``, without compiled files."""
    total = hashlib.sha256()
    files = []
    for directory, below, names in os.walk(source):
        below[:] = [name for name in below if name != _COMPILED]
        files += [Path(directory, name) for name in names]
    for file in sorted(files):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{file.relative_to(source).as_posix()}\0{content}\n".encode())
    return total.hexdigest()
