"""Patches: unified diffs, applied as exactly as they are written.

A machine may have neither ``patch`` nor ``git``, and the libraries for this on PyPI guess where a hunk could go. The
source is held to its SHA-256, so nothing has to be guessed: every hunk must fit at its very line. What is applied here
is applied by ``patch -p1`` and ``git apply`` too, with the same result; that is how Spack uses the same files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hidl_cli.errors import BuildFailed

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*")
_NOTHING = "/dev/null"


@dataclass(frozen=True)
class Hunk:
    """Lines that replace others: ``old`` begins with line ``start`` (1-based; 0: before the first). With line ends."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class FileDiff:
    """What changes in one file; ``old`` is None where it is made, ``new`` where it is removed."""

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...]


def apply(patch: Path, tree: Path) -> None:
    """Change the files below ``tree``; ``BuildFailed`` names the patch, the file and the line that does not fit."""
    for diff in read(patch):
        path = tree / (diff.old or diff.new or "")
        if diff.old is not None and not path.is_file():
            raise BuildFailed(f"the patch {patch.name} does not apply: {diff.old} not found in {tree.name}")
        if diff.old is None and path.exists():
            raise BuildFailed(f"the patch {patch.name} does not fit: {diff.new} is there already in {tree.name}")
        lines = _lines(path.read_bytes()) if diff.old else []
        for hunk in reversed(diff.hunks):
            begin = hunk.start - 1 if hunk.old else hunk.start
            if tuple(lines[begin : begin + len(hunk.old)]) != hunk.old:
                raise BuildFailed(f"the patch {patch.name} does not fit {diff.old or diff.new} at line {hunk.start}")
            lines[begin : begin + len(hunk.old)] = hunk.new
        if diff.new is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes("".join(lines).encode("utf-8", "surrogateescape"))


def read(patch: Path) -> tuple[FileDiff, ...]:
    """The diffs of a patch's file; what stands before the first is its header. ``BuildFailed`` where it is none."""
    lines = _lines(patch.read_bytes())
    diffs: list[FileDiff] = []
    number = 0
    while number < len(lines) - 1:
        if not (lines[number].startswith("--- ") and lines[number + 1].startswith("+++ ")):
            number += 1
            continue
        old, new = _path(lines[number], patch), _path(lines[number + 1], patch)
        number += 2
        hunks: list[Hunk] = []
        while number < len(lines) and (match := _HUNK.fullmatch(lines[number].rstrip("\r\n"))):
            counts = int(match[2] or 1), int(match[4] or 1)
            body = list(_body(lines[number + 1 :], *counts, patch))
            hunks.append(_hunk(int(match[1]), body))
            number += 1 + len(body)
        if not hunks or (old is None and new is None):
            raise BuildFailed(f"the patch {patch} is damaged: {new or old} has no hunk")
        diffs.append(FileDiff(old, new, tuple(hunks)))
    if not diffs:
        raise BuildFailed(f"{patch} is not a unified diff")
    return tuple(diffs)


def _body(lines: Sequence[str], old: int, new: int, patch: Path) -> Iterator[str]:
    """The lines of one hunk that has so many lines before and after, with the notes on missing line ends."""
    for line in lines:
        if line.startswith("\\"):
            yield line
            continue
        if old == new == 0:
            return
        kind = line[0] if line.rstrip("\r\n") else " "
        old -= kind in " -"
        new -= kind in " +"
        if kind not in " -+" or old < 0 or new < 0:
            break
        yield line
    if old or new:
        raise BuildFailed(f"the patch {patch} is damaged: a hunk has other lines than its head says")


def _hunk(start: int, body: Sequence[str]) -> Hunk:
    sides: dict[str, list[str]] = {"-": [], "+": []}
    touched: tuple[str, ...] = ()
    for line in body:
        if line.startswith("\\"):  # the line before has no line end
            for side in touched:
                sides[side][-1] = sides[side][-1].rstrip("\n")
            continue
        kind, text = (line[0], line[1:]) if line.rstrip("\r\n") else (" ", line)
        touched = ("-", "+") if kind == " " else (kind,)
        for side in touched:
            sides[side].append(text)
    return Hunk(start, tuple(sides["-"]), tuple(sides["+"]))


def _path(line: str, patch: Path) -> str | None:
    """The file that a ``---`` or ``+++`` line names, without its first directory; None for no file."""
    name = line[4:].rstrip("\r\n").split("\t")[0]
    if name == _NOTHING:
        return None
    path = PurePosixPath(name)
    inside = PurePosixPath(*path.parts[1:])
    if path.is_absolute() or ".." in path.parts or not inside.parts:
        raise BuildFailed(f"the patch {patch} names {name!r}, which is not a file below a/ or b/")
    return str(inside)


def _lines(content: bytes) -> list[str]:
    """The lines with their ends; only a line feed ends one, as for diff."""
    text = content.decode("utf-8", "surrogateescape")
    return [line for line in re.split(r"(?<=\n)", text) if line]
