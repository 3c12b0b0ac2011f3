"""The Python that Spack runs with: one that has clingo, so that Spack need not fetch its own from GitHub."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hidl_cli.errors import HidlError, MissingPrecondition
from hidl_cli.stack.providers.spack.places import cache
from hidl_cli.stack.steps import InstallStep

if TYPE_CHECKING:
    from hidl_cli.stack.order import Progress
    from hidl_cli.stack.providers.wheels import Wheels
    from hidl_cli.stack.target import Target

#: What concretizes, and what it needs; an air-gapped machine gets the wheels of these.
CLINGO = "clingo==5.8.3"
NAMED = "SPACK_PYTHON"


def without_clingo(target: Target) -> Path:
    """Return the interpreter for commands of Spack that resolve nothing: the one with clingo is not needed."""
    named = os.environ.get(NAMED)
    made = _made(target) / "bin" / "python"
    return Path(named) if named else made if made.exists() else target.interpreter


def _made(target: Target) -> Path:
    return cache() / f"python-{target.python}-{target.platform}-{CLINGO.rpartition('=')[2]}"


def python(target: Target, uv: Wheels, log: Path, progress: Progress, *, offline: bool, wheels: Path | None) -> Path:
    """The interpreter that Spack is to run with: the user's own ($SPACK_PYTHON), else one that hidl makes once.

    ``wheels``: a directory that holds clingo's, looked into first. Raises ``MissingPrecondition`` where clingo cannot
    be had.
    """
    from uv import find_uv_bin

    named = os.environ.get(NAMED)
    if named:
        return Path(named)
    made = _made(target)
    if (made / "bin" / "python").exists():
        return made / "bin" / "python"
    made.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=made.parent) as directory,
        progress.step("give Spack a Python with clingo", log),
    ):
        beside = Path(directory, "python")
        # Its scripts would name the place that it is made in; Spack uses the interpreter alone.
        options = ("--no-project", "--relocatable", "--python", str(target.interpreter))
        uv.run(InstallStep("make it", (find_uv_bin(), "venv", *options, str(beside))), log)
        asked = (*(("--find-links", str(wheels)) if wheels else ()), *(("--offline",) if offline else ()), CLINGO)
        try:
            uv.run(uv.add("install clingo", beside / "bin" / "python", *asked), log)
        except HidlError as error:
            raise MissingPrecondition(
                f"Spack needs clingo, and its wheel cannot be had: {error.message}",
                hint="bring it along (hidl stack fetch), or name a Python that has it with $SPACK_PYTHON",
            ) from error
        beside.replace(made)
    return made / "bin" / "python"
