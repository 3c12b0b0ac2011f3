"""Input files of a run: those that the words and parameters of its program name, as they were when it was submitted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli.stack.builds.sources import sha256

if TYPE_CHECKING:
    from hidl_cli.plan.launch_plan import Plan

SCHEMA = "hidl.inputs/1"

#: Larger files are known by size, times and inode alone: hashing them would delay the submission.
LARGEST_HASHED = 32 << 20


def input_files(plan: Plan) -> Iterator[Path]:
    """Yield the files that the program's words and parameters name, each once, without the stack's own files."""
    program = plan.workload.program
    base = Path(program.directory) if program.directory else None
    words = [*(program.command or ()), *(program.arguments or ())]
    words += [str(value) for point in plan.points for value in {**plan.parameters, **point}.values()]
    seen = set()
    for word in words:
        for text in (word, word.partition("=")[2]):
            file = _file(text, base)
            if file is None or file in seen or file.is_relative_to(plan.prefix):
                continue
            seen.add(file)
            yield file


def record_inputs(plan: Plan) -> dict[str, Any]:
    """Return the document ``inputs.json``: each input file as it is now, by its path."""
    files = {}
    for file in input_files(plan):
        try:
            status = file.stat()
            hashed = {"sha256": sha256(file)} if status.st_size <= LARGEST_HASHED else {}
        except OSError:
            continue
        files[str(file)] = {**fingerprint(status), **hashed}
    return {"schema": SCHEMA, "files": files}


def fingerprint(status: os.stat_result) -> dict[str, int]:
    """Return what changes if a file is written to or replaced, even by a file with an older time of change."""
    return {
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def is_unchanged(file: Path, recorded: Mapping[str, Any]) -> bool:
    """Is the file the one that was recorded? One without a recorded hash is not if only its inode or times differ."""
    try:
        if "sha256" in recorded:
            return bool(sha256(file) == recorded["sha256"])
        found = fingerprint(file.stat())
    except OSError:
        return False
    return all(recorded.get(name) == value for name, value in found.items())


def _file(text: str, base: Path | None) -> Path | None:
    """Return the file of that name; None if there is none, or the name is relative and the program has no directory."""
    if not text or "\0" in text or len(text) > 4096:
        return None
    path = Path(text)
    if not path.is_absolute():
        if base is None:
            return None
        path = base / path
    try:
        return path if path.is_file() else None
    except OSError:
        return None
