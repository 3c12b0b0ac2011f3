"""The file systems that hidl reads from and writes to, and the user's quota at home."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import paths
from hidl_cli.doctor.context import Context
from hidl_cli.errors import MissingPrecondition
from hidl_cli.site.probes.host import Host
from hidl_cli.stack import installation

_OCTAL = re.compile(r"\\([0-7]{3})")
#: What quota(1) prints of one file system with -w and -p: used, soft and hard limit and grace, of KiB and of files.
_QUOTA = re.compile(r"^\s*(\S+)\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\d+\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\d+\s*$", re.MULTILINE)
#: The same of `lfs quota -q`, whose grace is a word or a dash.
_LUSTRE = re.compile(r"^\s*(\S+)\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\S+\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\S+\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mounts: what is mounted where, as what, and how."""

    source: str
    point: str
    kind: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A directory that hidl uses, for ``what``; ``free_mib``: what its file system has left for this user."""

    what: str
    directory: str
    mount: Mount | None = None
    free_mib: int | None = None


@dataclass(frozen=True)
class Quota:
    """Used and admitted, of KiB and of files; a limit is the lower of the soft and the hard one; None: no limit."""

    kib: int
    kib_limit: int | None
    files: int
    files_limit: int | None

    @property
    def fullness(self) -> float:
        """How much of the tighter of the two limits is used; 0 where there is none."""
        kib = self.kib / self.kib_limit if self.kib_limit else 0.0
        return max(kib, self.files / self.files_limit if self.files_limit else 0.0)


@dataclass(frozen=True)
class Files:
    """``installations``: where stacks lie; ``runs``: where run directories are made."""

    installations: Place | None = None
    runs: Place | None = None
    home: str = ""
    quota: Quota | None = None


def probe(context: Context) -> Files:
    """The places on this host. The quota is not asked for before a run: a file server may take its time."""
    host = context.host
    mounts = read_mounts(host.read("/proc/self/mounts"))
    home = host.environment.get("HOME", "")
    root = _installations(context) if context.is_here else None
    return Files(
        installations=_place(host, mounts, "the installations", root) if root else None,
        runs=_place(host, mounts, "run directories", str(paths.runs())),
        home=home,
        quota=_quota(host, _mount_of(mounts, os.path.realpath(home)), home) if home and not context.plan else None,
    )


def read_mounts(text: str) -> tuple[Mount, ...]:
    """What /proc/self/mounts says (fstab(5): blanks in names stand as octal numbers)."""
    found = []
    for line in text.splitlines():
        fields = [_OCTAL.sub(lambda match: chr(int(match[1], 8)), field) for field in line.split()]
        if len(fields) >= 4:
            found.append(Mount(fields[0], fields[1], fields[2], tuple(fields[3].split(","))))
    return tuple(found)


def _installations(context: Context) -> str | None:
    if context.installation is not None:
        return str(context.installation.prefix)
    try:
        return str(installation.root(context.site))
    except MissingPrecondition:
        return None


def _place(host: Host, mounts: Sequence[Mount], what: str, directory: str) -> Place:
    mount = _mount_of(mounts, os.path.realpath(directory))
    return Place(what, directory, mount, _free_mib(host, mount.point) if mount else None)


def _mount_of(mounts: Sequence[Mount], path: str) -> Mount | None:
    """The one that the path lies on: the longest; of several on one point the last, which covers the others."""
    fitting = [mount for mount in mounts if Path(path).is_relative_to(mount.point)]
    return max(reversed(fitting), key=lambda mount: len(mount.point), default=None)


def _free_mib(host: Host, point: str) -> int | None:
    """The fourth column of ``df -Pk`` (POSIX)."""
    found = re.search(r"\s\d+\s+-?\d+\s+(-?\d+)\s+-?\d+%\s", host.ask("df", "-Pk", "--", point) or "")
    return int(found[1]) // 1024 if found else None


def _quota(host: Host, mount: Mount | None, home: str) -> Quota | None:
    if mount is None:
        return None
    user = host.environment.get("USER", "")
    if mount.kind == "lustre" and user:
        return _first(_LUSTRE, host.ask("lfs", "quota", "-q", "-u", user, home) or "", None)
    if host.which("quota") is None:
        return None
    # Its status says whether a limit is exceeded; what it prints counts.
    return _first(_QUOTA, host.ask("sh", "-c", "quota -w -p || true") or "", mount.source)


def _first(pattern: re.Pattern[str], text: str, source: str | None) -> Quota | None:
    """The quota of the file system ``source``; None: of the only one that is listed."""
    for name, *numbers in pattern.findall(text):
        kib, soft, hard, files, soft_files, hard_files = map(int, numbers)
        if source in (None, name):
            return Quota(kib, _lower(soft, hard), files, _lower(soft_files, hard_files))
    return None


def _lower(soft: int, hard: int) -> int | None:
    return min((limit for limit in (soft, hard) if limit), default=None)
