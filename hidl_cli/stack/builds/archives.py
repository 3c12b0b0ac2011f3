"""Unpacking a source archive, so that nothing of it lands outside of its directory."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath

from hidl_cli.errors import BuildFailed


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
