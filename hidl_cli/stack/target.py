"""What a lock is made for: an interpreter, a platform, and what computes there."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hidl_cli.errors import MissingPrecondition, ProcessFailed

if TYPE_CHECKING:
    from hidl_cli.site.schema import Site

Accelerator = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Target:
    """Where a stack is to run.

    ``python`` is the interpreter's tag (``cp311``), ``platform`` system and architecture (``linux-x86_64``), ``glibc``
    the version of the C library there (None: another one), ``interpreter`` the Python that the stack is built on.
    """

    python: str
    platform: str
    glibc: tuple[int, int] | None
    accelerator: Accelerator
    interpreter: Path


def detect(site: Site) -> Target:
    """The target of stacks on ``site``, of whose login or compute node this machine is one.

    Raises ``MissingPrecondition`` where the site's interpreter is not there.
    """
    interpreter, tag = _interpreter(site.install.python)
    return Target(
        python=tag,
        platform=f"{sys.platform}-{platform.machine()}",
        glibc=_glibc(),
        accelerator="cuda" if site.node_type().gpus else "cpu",
        interpreter=interpreter,
    )


def _interpreter(configured: str | None) -> tuple[Path, str]:
    """The interpreter's path and tag; nothing is started where it is the one that runs hidl."""
    if configured is None:
        return Path(sys.executable), _tag(f"{sys.implementation.cache_tag}{sys.abiflags}")
    found = shutil.which(Path(os.path.expandvars(configured)).expanduser())
    if found is None:
        raise MissingPrecondition(
            f"there is no Python interpreter {configured!r} here", hint="mend `install.python` in the site's file"
        )
    from hidl_cli import process

    probe = "import sys; print(sys.implementation.cache_tag + sys.abiflags)"
    try:
        answer = process.run([found, "-I", "-c", probe], timeout=60).stdout.strip()
    except ProcessFailed as failure:
        raise MissingPrecondition(
            f"{found} does not work as a Python interpreter: {failure.output.strip()}",
            hint="mend `install.python` in the site's file",
        ) from failure
    return Path(found), _tag(answer)


def _tag(cache_tag: str) -> str:
    """``cpython-311`` -> ``cp311``."""
    return cache_tag.replace("cpython-", "cp")


def _glibc() -> tuple[int, int] | None:
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError, AttributeError):
        return None
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) if name == "glibc" else None
