"""The tutorials' pages: each is done as a whole, and what each command prints is held against what stands there."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.tutorials.tutorial import Command, is_as_shown, rewritten, run, steps
from tests.tutorials.volatile import normal

WRITING = bool(os.environ.get("HIDL_WRITE_GOLDEN"))
TUTORIALS = REPOSITORY / "docs" / "tutorials"


def _commands(name: str) -> list[Command]:
    page = (TUTORIALS / f"{name}.md").read_text(encoding="utf-8")
    return [step for step in steps(page) if isinstance(step, Command)]


def each_command(name: str) -> pytest.MarkDecorator:
    """One test for each command of a page."""
    found = _commands(name)
    return pytest.mark.parametrize("command", found, ids=[f"{one.number + 1}: {one.text[:50]}" for one in found])


def done(name: str, home: Path, **variables: str) -> tuple[Path, list[str]]:
    """The whole tutorial, as somebody does it whose home is new; what each command printed."""
    program = home / ".local" / "bin" / "hidl"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nfrom hidl_cli.__main__ import main\n\nmain()\n")  # as pip makes it
    program.chmod(0o755)
    page = TUTORIALS / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    printed = run(text, home, _environment(home, program.parent) | variables, timeout=500)
    if WRITING:
        page.write_text(rewritten(text, printed, home), encoding="utf-8")
    return home, printed


def _environment(home: Path, programs: Path) -> Mapping[str, str]:
    """That of a new account: no settings of hidl, all directories below its home."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HIDL_", "XDG_", "SLURM_"))}
    return kept | {
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONUNBUFFERED": "1",  # both streams go to one place, in order
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR") or str(Path.home() / ".cache" / "uv"),
        "COLUMNS": "120",
    }


def holds(command: Command, outcome: tuple[Path, list[str]]) -> None:
    """What the command printed is what stands on the page."""
    home, printed = outcome
    if WRITING:
        pytest.skip("rewritten")
    assert len(printed) > command.number, f"the shell ended before it; last was: {printed[-1] if printed else None}"
    now = printed[command.number]
    if not is_as_shown(command.printed, now, home):
        difference = difflib.unified_diff(
            normal(command.printed, home).split("\n"), normal(now, home).split("\n"), "shown", "printed", lineterm=""
        )
        pytest.fail(f"{command.text}\n" + "\n".join(difference), pytrace=False)
