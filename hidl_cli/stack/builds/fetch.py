"""Fetch, verify, unpack and patch a build's source archive."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hidl_cli import documents, paths
from hidl_cli.errors import BuildFailed
from hidl_cli.stack.builds.plan import Packager, PlannedBuild, find_source, missing_source

if TYPE_CHECKING:
    from hidl_cli.stack.plan import InstallPlan


def unpack(archive: Path, directory: Path) -> Path:
    """Unpack a tar archive into ``directory`` and return its top-level directory.

    Raises ``BuildFailed`` unless the archive has exactly one top-level directory, and all members are regular files,
    directories or links inside of it.
    """
    try:
        with tarfile.open(archive) as tar:
            members = [_check_member(member, archive) for member in tar.getmembers()]
            tops = {PurePosixPath(member.name).parts[0] for member in members if PurePosixPath(member.name).parts}
            if len(tops) != 1:
                raise BuildFailed(
                    f"{archive} must contain exactly one top-level directory, not {', '.join(sorted(tops)) or 'none'}"
                )
            # Older patch releases of Python 3.10 and 3.11 lack filters, but the members have already been checked.
            options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(directory, members=members, **options)  # type: ignore[arg-type]
    except (tarfile.TarError, EOFError, OSError) as error:
        raise BuildFailed(f"{archive} cannot be unpacked: {error}") from error
    return directory / tops.pop()


def _check_member(member: tarfile.TarInfo, archive: Path) -> tarfile.TarInfo:
    path = PurePosixPath(member.name)
    targets = [path]
    if member.issym():
        targets.append(path.parent / member.linkname)
    elif member.islnk():
        targets.append(PurePosixPath(member.linkname))
    plain = member.isfile() or member.isdir() or member.issym() or member.islnk()
    if not plain or any(_is_outside(target) for target in targets):
        raise BuildFailed(f"refusing to unpack {archive}: its member {member.name!r} would be outside of the directory")
    member.mode &= 0o755
    return member


def _is_outside(path: PurePosixPath) -> bool:
    """Return True if the path leads out of its starting directory."""
    depth = 0
    for part in path.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return path.is_absolute()


# The source archive for a planned build, verified by its SHA-256.


def keep_archive(build: PlannedBuild, root: Path) -> None:
    """Copy an archive from the command line to ``<root>/sources``, where the next installation will find it."""
    file = root / "sources" / build.recipe.source.file
    if build.archive is None or find_source(file.name, root) == build.archive:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{os.getpid()}-{file.name}")
    try:
        shutil.copyfile(build.archive, beside)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def cached_archive(build: PlannedBuild) -> Path:
    """Return the path of a downloaded archive in hidl's cache."""
    return paths.user_cache() / "sources" / build.source_digest[:16] / build.recipe.source.file


def find_archive(build: PlannedBuild, root: Path) -> Path | None:
    """Return the archive if it is on this machine, or None otherwise.

    Raises ``BuildFailed`` if the user's archive does not match its SHA-256.
    """
    if build.archive is not None:
        _check_digest(build.archive, build)
        return build.archive
    found = find_source(build.recipe.source.file, root)
    if found is not None:
        _check_digest(found, build)
        return found
    file = cached_archive(build)
    if not file.is_file():
        return None
    if documents.sha256(file) != build.source_digest:  # hidl's own copy is damaged and can be fetched again
        file.unlink()
        return None
    return file


def fetch(build: PlannedBuild, plan: InstallPlan, provider: Packager, log: Path) -> Path:
    """Download the archive to the cache with pip, which uses the user's settings.

    The SHA-256 is verified before any code of the archive runs. Raises ``MissingPrecondition`` if the user must provide
    the source, and ``BuildFailed`` if the download fails or its SHA-256 does not match.
    """
    if build.recipe.source.pypi is None:
        raise missing_source(build.recipe, plan.root)
    file = cached_archive(build)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as directory:
        wanted = Path(directory, "wanted.txt")
        requirement = f"{build.recipe.source.pypi}=={build.version} --hash=sha256:{build.source_digest}\n"
        wanted.write_text(requirement, encoding="utf-8")
        provider.run(provider.fetch_source(plan, build.recipe, wanted, Path(directory)), log)
        fetched = Path(directory, build.recipe.source.file)
        if not fetched.is_file():
            raise BuildFailed(f"{fetched.name} not found on the package index; see {log}")
        _check_digest(fetched, build)
        fetched.replace(file)
    return file


def _check_digest(file: Path, build: PlannedBuild) -> None:
    found = documents.sha256(file)
    if found != build.source_digest:
        raise BuildFailed(
            f"{file} does not match the recipe: its SHA-256 is {found}, not {build.source_digest}",
            hint="the file is damaged or was changed: remove it and download it again",
        )


# Patches: unified diffs, applied without fuzz.


_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*")
_NOTHING = "/dev/null"


@dataclass(frozen=True)
class Hunk:
    """A hunk in a diff: ``new`` replaces ``old``, which begins at line ``start`` (counted from 1).

    If ``old`` is empty, ``new`` is inserted after that line.
    """

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class FileDiff:
    """The changes to one file. ``old`` is None for a new file, and ``new`` is None for a removed file."""

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...]


def apply(patch: Path, tree: Path) -> None:
    """Apply a patch to the files below ``tree``. Raises ``BuildFailed`` with the first line that does not match."""
    for diff in read(patch):
        path = tree / (diff.old or diff.new or "")
        if diff.old is not None and not path.is_file():
            raise BuildFailed(f"patch {patch.name} does not apply: {diff.old} not found in {tree.name}")
        if diff.old is None and path.exists():
            raise BuildFailed(f"patch {patch.name} does not apply: {diff.new} already exists in {tree.name}")
        lines = _lines(path.read_bytes()) if diff.old else []
        for hunk in reversed(diff.hunks):
            begin = hunk.start - 1 if hunk.old else hunk.start
            if tuple(lines[begin : begin + len(hunk.old)]) != hunk.old:
                raise BuildFailed(f"patch {patch.name} does not apply to {diff.old or diff.new} at line {hunk.start}")
            lines[begin : begin + len(hunk.old)] = hunk.new
        if diff.new is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes("".join(lines).encode("utf-8", "surrogateescape"))


def read(patch: Path) -> tuple[FileDiff, ...]:
    """Parse a patch file; lines before the first diff are ignored. Raises ``BuildFailed`` if it is not a patch."""
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
            raise BuildFailed(f"patch {patch} is damaged: {new or old} has no hunks")
        diffs.append(FileDiff(old, new, tuple(hunks)))
    if not diffs:
        raise BuildFailed(f"{patch} is not a unified diff")
    return tuple(diffs)


def _body(lines: Sequence[str], old: int, new: int, patch: Path) -> Iterator[str]:
    """Yield the lines of a hunk that replaces ``old`` lines with ``new`` lines, including notes on missing newlines."""
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
        raise BuildFailed(f"patch {patch} is damaged: the lines of a hunk do not match its header")


def _hunk(start: int, body: Sequence[str]) -> Hunk:
    sides: dict[str, list[str]] = {"-": [], "+": []}
    touched: tuple[str, ...] = ()
    for line in body:
        if line.startswith("\\"):  # the previous line has no newline
            for side in touched:
                sides[side][-1] = sides[side][-1].rstrip("\n")
            continue
        kind, text = (line[0], line[1:]) if line.rstrip("\r\n") else (" ", line)
        touched = ("-", "+") if kind == " " else (kind,)
        for side in touched:
            sides[side].append(text)
    return Hunk(start, tuple(sides["-"]), tuple(sides["+"]))


def _path(line: str, patch: Path) -> str | None:
    """Return the file named in a ``---`` or ``+++`` line without its first directory, or None for ``/dev/null``."""
    name = line[4:].rstrip("\r\n").split("\t")[0]
    if name == _NOTHING:
        return None
    path = PurePosixPath(name)
    inside = PurePosixPath(*path.parts[1:])
    if path.is_absolute() or ".." in path.parts or not inside.parts:
        raise BuildFailed(f"patch {patch} names {name!r}, which is not a file below a/ or b/")
    return str(inside)


def _lines(content: bytes) -> list[str]:
    """Split text at line feeds only, as diff does, and keep the line feeds."""
    text = content.decode("utf-8", "surrogateescape")
    return [line for line in re.split(r"(?<=\n)", text) if line]
