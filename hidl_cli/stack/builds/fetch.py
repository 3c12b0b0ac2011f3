"""Unpacking a source archive, so that nothing of it lands outside of its directory."""

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

from hidl_cli import paths
from hidl_cli.errors import BuildFailed
from hidl_cli.stack.builds import sources

if TYPE_CHECKING:
    from hidl_cli.stack.builds.contract import Packager
    from hidl_cli.stack.builds.planned import PlannedBuild
    from hidl_cli.stack.plan import InstallPlan


def unpack(archive: Path, directory: Path) -> Path:
    """Unpack a tar archive below ``directory``; returns its one top directory.

    Raises ``BuildFailed`` for a member that is not a plain file, a directory or a link inside of it, for one whose
    path leads elsewhere, and for an archive with several top directories or none.
    """
    try:
        with tarfile.open(archive) as tar:
            members = [_harmless(member, archive) for member in tar.getmembers()]
            tops = {PurePosixPath(member.name).parts[0] for member in members if PurePosixPath(member.name).parts}
            if len(tops) != 1:
                raise BuildFailed(f"{archive} does not hold one directory, but {', '.join(sorted(tops)) or 'nothing'}")
            # Older patch releases of Python 3.10 and 3.11 have no filters; the members were looked at already.
            options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(directory, members=members, **options)  # type: ignore[arg-type]
    except (tarfile.TarError, EOFError, OSError) as error:
        raise BuildFailed(f"{archive} cannot be unpacked: {error}") from error
    return directory / tops.pop()


def _harmless(member: tarfile.TarInfo, archive: Path) -> tarfile.TarInfo:
    path = PurePosixPath(member.name)
    targets = [path]
    if member.issym():
        targets.append(path.parent / member.linkname)
    elif member.islnk():
        targets.append(PurePosixPath(member.linkname))
    plain = member.isfile() or member.isdir() or member.issym() or member.islnk()
    if not plain or any(_leaves(target) for target in targets):
        raise BuildFailed(f"{archive} is not unpacked: its member {member.name!r} would leave the directory")
    member.mode &= 0o755
    return member


def _leaves(path: PurePosixPath) -> bool:
    """Does the path lead out of where it starts?"""
    depth = 0
    for part in path.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return path.is_absolute()


# The source archive of a planned build: kept, or fetched from the package index; always held to its SHA-256.


def keep(build: PlannedBuild, root: Path) -> None:
    """Copy an archive that the user named to ``<root>/sources``: the next installation finds it there."""
    file = root / "sources" / build.recipe.source.file
    if build.archive is None or sources.find(file.name, root) == build.archive:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{os.getpid()}-{file.name}")
    try:
        shutil.copyfile(build.archive, beside)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def kept(build: PlannedBuild) -> Path:
    """Where hidl keeps a fetched archive."""
    return paths.user_cache() / "sources" / build.source_digest[:16] / build.recipe.source.file


def present(build: PlannedBuild, root: Path) -> Path | None:
    """The archive, if it need not be fetched; ``BuildFailed`` where it has another content than the recipe says."""
    if build.archive is not None:
        _hold_to_digest(build.archive, build)
        return build.archive
    found = sources.find(build.recipe.source.file, root)
    if found is not None:
        _hold_to_digest(found, build)
        return found
    file = kept(build)
    if not file.is_file():
        return None
    if sources.sha256(file) != build.source_digest:  # hidl's own copy is damaged: it can be fetched again
        file.unlink()
        return None
    return file


def fetch(build: PlannedBuild, plan: InstallPlan, provider: Packager, log: Path) -> Path:
    """The archive, fetched into the cache; ``MissingPrecondition`` where hidl cannot, ``BuildFailed`` for a wrong one.

    pip fetches it, with the user's settings; the SHA-256 is checked before anything of it is run.
    """
    if build.recipe.source.pypi is None:
        raise sources.missing(build.recipe, plan.root)
    file = kept(build)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as directory:
        wanted = Path(directory, "wanted.txt")
        requirement = f"{build.recipe.source.pypi}=={build.version} --hash=sha256:{build.source_digest}\n"
        wanted.write_text(requirement, encoding="utf-8")
        provider.run(provider.fetch_source(plan, build.recipe, wanted, Path(directory)), log)
        fetched = Path(directory, build.recipe.source.file)
        if not fetched.is_file():
            raise BuildFailed(f"the package index holds no {fetched.name}; see {log}")
        _hold_to_digest(fetched, build)
        fetched.replace(file)
    return file


def _hold_to_digest(file: Path, build: PlannedBuild) -> None:
    found = sources.sha256(file)
    if found != build.source_digest:
        raise BuildFailed(
            f"{file} is not the source that the recipe names: its SHA-256 is {found}, not {build.source_digest}",
            hint="it was changed or is damaged: remove it and download it again",
        )


# Patches: unified diffs, applied as exactly as they are written.


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


# Source archives that the user or an earlier installation put here.
